"""status.json of a launch: written by the supervisor (or the simulator), read by every verb.

Written to a temporary name and renamed, so a reader sees the old file or the new one, never a part.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Optional

STATUS_NAME = "status.json"
_READ_LIMIT = 1 << 20


@dataclass(frozen=True)
class Status:
    """What the supervisor knows. Times are seconds since the epoch, start_time clock ticks since boot."""

    launch_id: str
    state: str  # starting, running, exited
    pid: Optional[int] = None
    start_time: Optional[int] = None
    sid: Optional[int] = None
    exit_code: Optional[int] = None
    exit_signal: Optional[int] = None
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    supervisor_pid: Optional[int] = None
    error: Optional[str] = None  # why the process could not be started at all


def write_json(path: str, value: Dict[str, Any]) -> None:
    """Replace path atomically with value, mode 0600, on disk before the name changes."""
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(value, stream, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in path; None where the file is absent, unreadable or no JSON object."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as stream:
            value = json.loads(stream.read(_READ_LIMIT).decode("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_status(directory: str, status: Status) -> None:
    """Write DIRECTORY/status.json."""
    write_json(os.path.join(directory, STATUS_NAME), asdict(status))


def read_status(directory: str) -> Optional[Status]:
    """DIRECTORY/status.json; None where the launch never came so far."""
    found = read_json(os.path.join(directory, STATUS_NAME))
    if found is None or not isinstance(found.get("launch_id"), str) or not isinstance(found.get("state"), str):
        return None
    known = {field.name for field in fields(Status)}
    return Status(**{name: value for name, value in found.items() if name in known})
