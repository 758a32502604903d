"""Reading /proc. Everything may vanish while it is read: a process that ended is None, never an error."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from .system import Process

TITLE_LIMIT = 200
_ENVIRON_LIMIT = 1 << 20
_MARKERS = ("FLEETADMIN_LAUNCH", "FLEETADMIN_CONTROLLER")
_SHM = "/dev/shm/"  # noqa: S108 - the kernel's directory; only read here
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_bytes(path: str, limit: int = 1 << 20) -> Optional[bytes]:
    try:
        with open(path, "rb", buffering=0) as stream:
            parts = []
            while limit > 0:
                part = stream.read(min(limit, 1 << 16))
                if not part:
                    break
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
    except OSError:
        return None


def read_text(path: str, limit: int = 1 << 20) -> Optional[str]:
    """The file's text, NUL and invalid UTF-8 replaced; None where it cannot be read."""
    found = read_bytes(path, limit)
    return None if found is None else found.decode("utf-8", "replace").replace("\0", "\ufffd")


def list_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_process(pid: int) -> Optional[Process]:
    """One process of /proc/PID; None when it is gone."""
    directory = f"/proc/{pid}"
    stat = parse_stat(read_bytes(directory + "/stat", 4096))
    if stat is None:
        return None
    comm, fields = stat
    try:
        uid = os.stat(directory).st_uid
    except OSError:
        return None
    marker, controller = read_markers(directory) if fields[0] not in ("Z", "X") else (None, None)
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        uid=uid,
        state=fields[0],
        start_time=int(fields[19]),
        title=read_title(directory, comm),
        rss=max(0, int(fields[21])) * _PAGE,
        marker=marker,
        controller=controller,
    )


def parse_stat(content: Optional[bytes]) -> Optional[Tuple[str, List[str]]]:
    """(comm, the fields from the state on). The comm may hold spaces and brackets: the last ')' ends it."""
    if not content or b"(" not in content or b")" not in content:
        return None
    text = content.decode("utf-8", "replace")
    start, end = text.index("("), text.rindex(")")
    fields = text[end + 1 :].split()
    return (text[start + 1 : end], fields) if len(fields) >= 22 else None


def read_title(directory: str, comm: str) -> str:
    """The command line, which setproctitle overwrites.

    The comm in brackets for kernel threads and zombies.
    """
    content = read_bytes(directory + "/cmdline", 8 * TITLE_LIMIT) or b""
    title = content.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return title[:TITLE_LIMIT] or f"[{comm}]"


def read_markers(directory: str) -> Tuple[Optional[str], Optional[str]]:
    """The two marker variables of the process; None where absent or not ours to read."""
    content = read_bytes(directory + "/environ", _ENVIRON_LIMIT)
    if not content or b"FLEETADMIN_" not in content:
        return None, None
    found: Dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name.startswith(b"FLEETADMIN_"):
            found.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return found.get(_MARKERS[0]), found.get(_MARKERS[1])


def mapped_shm(pid: int) -> List[str]:
    """Names below /dev/shm that the process maps (all of them, unlinked ones left out)."""
    names = set()
    for line in (read_text(f"/proc/{pid}/maps", 16 << 20) or "").splitlines():
        position = line.find(_SHM)
        if position >= 0 and not line.endswith(" (deleted)"):
            names.add(line[position + len(_SHM) :])
    return sorted(names)


def mount_type(path: str) -> str:
    """The file system type of the mount that holds path, by /proc/self/mountinfo, else 'unknown'.

    The device number decides, then the longest mount point: bind mounts share a number, overlays do not lie.
    """
    try:
        device = os.stat(path).st_dev
    except OSError:
        return "unknown"
    number = f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(path)
    best, best_length, by_number = "unknown", -1, None
    for line in (read_text("/proc/self/mountinfo", 4 << 20) or "").splitlines():
        before, _separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = fields[4].replace("\\040", " ")
        if fields[2] == number:
            by_number = kind
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best_length:
            best, best_length = kind, len(point)
    # btrfs and overlay give files another device number than the mount has; then the mount point decides.
    return by_number or best
