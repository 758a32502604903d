"""Writing a file through a command's stdin: no SFTP subsystem is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosts.ssh.command import Command, Result
from hosts.ssh.errors import WriteRefused

if TYPE_CHECKING:
    from collections.abc import Callable

# Arguments: path, mode (octal), size. The size is compared because a broken connection looks like the end of
# stdin.
WRITE_FILE = (
    'umask 077; t="$1.$$.part"; LC_ALL=C; export LC_ALL; '
    'if cat >"$t" && [ "$(wc -c <"$t")" -eq "$3" ] && chmod "$2" "$t" && mv -f "$t" "$1"; then exit 0; fi; '
    'rm -f "$t"; exit 1'
)
BYTES_PER_SECOND_AT_LEAST = 256 * 1024


def put_file(run: Callable[[Command], Result], *, address: str, path: str, content: bytes, mode: int) -> None:
    """Write `content` to `path` (absolute) by a temporary file beside it and a rename.

    Errors: WriteRefused (WRITE_REFUSED, DISK_FULL) and those of `run`. The folder must exist.
    """
    if not path.startswith("/"):
        raise ValueError("a remote path is absolute")
    timeout = 30.0 + len(content) / BYTES_PER_SECOND_AT_LEAST
    argv = ("/bin/sh", "-c", WRITE_FILE, "sh", path, f"{mode:o}", str(len(content)))
    result = run(Command(argv=argv, stdin=content, timeout=timeout))
    if result.ok:
        return
    detail = result.error_text.strip()[:500] or f"exit status {result.exit_status}"
    if "No space left" in detail or "quota exceeded" in detail.lower():
        raise WriteRefused("DISK_FULL", path=path, address=address, wanted=len(content))
    raise WriteRefused("WRITE_REFUSED", path=path, address=address, detail=detail)
