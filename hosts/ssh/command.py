"""What is run on a host and what came of it. Quoting happens here and nowhere else."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """One program with its arguments.

    `argv` is never given to a shell as written, but sshd always passes the line through the account's login
    shell, so `render` quotes every word. `stdin` is bytes, shown in no repr: it may carry a secret.
    `timeout` is seconds from the request to the exit status.
    """

    argv: tuple[str, ...]
    stdin: bytes = field(default=b"", repr=False)
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("a command needs a program")
        if any("\0" in word for word in self.argv):
            raise ValueError("an argument cannot hold a NUL")
        if self.timeout <= 0:
            raise ValueError("a time-out is more than 0 seconds")

    def render(self) -> str:
        """Give the line for the login shell (POSIX quoting)."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Result:
    """An ended command. A non-zero exit is a result, not an error.

    `exit_status` is None when the host named none (the program was ended by a signal). `stdout` and `stderr`
    are the bytes received, bounded by `Limits.max_output` each; `truncated` says that more was sent and
    dropped.
    """

    exit_status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_status == 0

    @property
    def text(self) -> str:
        """Give stdout for people and parsers: NUL and invalid UTF-8 replaced by U+FFFD."""
        return clean_text(self.stdout)

    @property
    def error_text(self) -> str:
        return clean_text(self.stderr)


def clean_text(raw: bytes) -> str:
    """Give what a host wrote as text: NUL and invalid UTF-8 become U+FFFD."""
    return raw.decode("utf-8", errors="replace").replace("\0", "\ufffd")
