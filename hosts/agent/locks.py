"""Locks between agents of one host: flock, which the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import Callable, Iterator, Optional

from .refusal import Refusal

LOCK_WAIT_S = 90.0
_POLL_S = 0.05


def open_lock(path: str) -> int:
    """A descriptor to lock on. Close-on-exec: a child must not keep the lock alive."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_lock(path: str) -> Optional[int]:
    """The locked descriptor, None where somebody else holds it. Close it to unlock."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: str) -> bool:
    """Whether somebody holds the lock now; False where the file does not exist."""
    if not os.path.exists(path):
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def hold_lock(path: str, *, sleep: Callable[[float], None], wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold path's lock; refuses with LOCKED where another agent keeps it longer than wait_s."""
    descriptor = try_lock(path)
    rounds = int(wait_s / _POLL_S)
    while descriptor is None:
        rounds -= 1
        if rounds < 0:
            raise Refusal(
                "LOCKED",
                f"Another request has held the lock {os.path.basename(path)} for {wait_s:g} s.",
                "Wait until the other request has ended, then ask again.",
            )
        sleep(_POLL_S)
        descriptor = try_lock(path)
    try:
        yield
    finally:
        os.close(descriptor)
