"""The agent's own directory on the host: where things lie, and the checks before anything is written.

STATE_ROOT/MACHINE_ID/BOOT_ID/launches/LAUNCH_ID/…, …/slots/SLOT.json, STATE_ROOT/logs/INSTANCE/LAUNCH_ID.log.
After a reboot the boot id differs, so what an earlier boot left is history and never mistaken for a live
process.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Iterator, Optional, Tuple

from .refusal import Refusal
from .system import System

# flock and rename are only as good as the file system: network and user-space ones are refused.
NOT_LOCAL = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "fuse",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "ocfs2",
        "gfs2",
        "beegfs",
    }
)


class StateRoot:
    """Paths below the state root of one machine and boot."""

    def __init__(self, *, path: str, machine_id: str, boot_id: str, log_root: Optional[str]) -> None:
        self.path = path
        self.machine_directory = os.path.join(path, machine_id)
        self.boot_id = boot_id
        self.boot_directory = os.path.join(self.machine_directory, boot_id)
        self.log_root = log_root or os.path.join(path, "logs")

    def launch_directory(self, launch_id: str) -> str:
        return os.path.join(self.boot_directory, "launches", launch_id)

    def slot_path(self, slot: str) -> str:
        return os.path.join(self.boot_directory, "slots", slot + ".json")

    def log_path(self, instance: str, launch_id: str) -> str:
        return os.path.join(self.log_root, instance, launch_id + ".log")

    def launch_ids(self) -> Iterator[str]:
        """Launches of this boot, in the order of their names."""
        try:
            names = sorted(os.listdir(os.path.join(self.boot_directory, "launches")))
        except OSError:
            return iter(())
        return iter(names)

    def earlier_directory(self, launch_id: str) -> Optional[str]:
        """The launch's directory of an earlier boot of this machine, None where there is none."""
        try:
            boots = sorted(os.listdir(self.machine_directory))
        except OSError:
            return None
        for boot in boots:
            directory = os.path.join(self.machine_directory, boot, "launches", launch_id)
            if boot != self.boot_id and os.path.isdir(directory):
                return directory
        return None


def default_path(home: str) -> str:
    """~/.fleetadmin, the home resolved: a linked /home is the host's own decision, a link below it is not."""
    return os.path.join(os.path.realpath(home), ".fleetadmin")


def open_state_root(system: System, *, path: Optional[str], log_root: Optional[str]) -> StateRoot:
    """Check the state root, make what is missing, and return its paths. Refuses with STATE_ROOT_*."""
    chosen = path or default_path(system.home)
    check_directory(system, chosen, code="STATE_ROOT")
    root = StateRoot(path=chosen, machine_id=system.machine_id(), boot_id=system.boot_id(), log_root=log_root)
    for part in ("launches", "slots"):
        make_private(os.path.join(root.boot_directory, part), below=chosen)
    if log_root:
        check_directory(system, log_root, code="LOG_ROOT", local=False)
    return root


def check_directory(system: System, path: str, *, code: str, local: bool = True) -> None:
    """A directory of ours without a link on the way, made where it is missing (mode 0700)."""
    word = "state root" if code == "STATE_ROOT" else "log root"
    if not os.path.isabs(path) or os.path.normpath(path) != path.rstrip("/"):
        raise Refusal(
            code + "_NOT_ABSOLUTE",
            f"The {word} {path} is no plain absolute path.",
            "Name it in full, without . or ..",
        )
    existing = _check_links(path, code, word)
    if local:
        kind, _total, _free = system.filesystem(existing)
        if kind in NOT_LOCAL or kind.startswith("fuse"):
            raise Refusal(
                "STATE_ROOT_NOT_LOCAL",
                f"The {word} {path} lies on {kind}, where locks cannot be relied on.",
                "Name a directory on a local disk as the state root of this host.",
                {"path": path, "filesystem": kind},
            )
    try:
        make_private(path, below=existing)
    except OSError as error:
        raise _not_usable(code, word, path, error) from error
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Refusal(
            code + "_NOT_OURS",
            f"The {word} {path} belongs to uid {found.st_uid}, not to {os.geteuid()}.",
            f"Name a directory of the SSH user as the {word}, or give this one to it.",
            {"path": path, "owner": found.st_uid, "uid": os.geteuid()},
        )
    if local and stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)
    if not os.access(path, os.W_OK | os.X_OK):
        raise _not_usable(code, word, path, PermissionError("not writable"))


def _not_usable(code: str, word: str, path: str, error: OSError) -> Refusal:
    return Refusal(
        code + "_NOT_WRITABLE",
        f"The {word} {path} cannot be made or written: {error.strerror or error}.",
        f"Name a directory of the SSH user on a writable disk as the {word}.",
        {"path": path},
    )


def _check_links(path: str, code: str, word: str) -> str:
    """Refuse where a part of path is a link; return the longest part that exists."""
    current = "/"
    for part in [name for name in path.split("/") if name]:
        following = os.path.join(current, part)
        try:
            mode = os.lstat(following).st_mode
        except FileNotFoundError:
            return current
        except OSError as error:
            raise _not_usable(code, word, path, error) from error
        if stat.S_ISLNK(mode):
            raise Refusal(
                code + "_LINKED",
                f"The {word} {path} leads over the link {following}.",
                f"Name {os.path.realpath(path)} itself as the {word} if that is the right place.",
                {"path": path, "link": following},
            )
        current = following
    return current


def make_private(path: str, *, below: str) -> None:
    """Make the directories of path that lie below an existing one, mode 0700."""
    current = below
    for part in os.path.relpath(path, below).split("/"):
        current = os.path.normpath(os.path.join(current, part))
        try:
            os.mkdir(current, 0o700)
        except FileExistsError:
            if os.path.islink(current):
                raise


def make_temporary(base: str, name: str) -> str:
    """BASE/fleetadmin-UID/NAME, 0700 and ours.

    Sockets of vLLM lie there, so nobody else may own a part of it.
    """
    uid = os.geteuid()
    parts: Tuple[str, str] = (
        os.path.join(base, f"fleetadmin-{uid}"),
        os.path.join(base, f"fleetadmin-{uid}", name),
    )
    for path in parts:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o022:
            raise Refusal(
                "TEMP_NOT_OURS",
                f"{path} is not a private directory of uid {uid}.",
                "Remove it, or find out who made it.",
                {"path": path, "owner": found.st_uid},
            )
    return parts[1]
