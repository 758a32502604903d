"""Back-off for connecting: a pure schedule, and a caller that follows it."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from hosts.ssh.errors import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def schedule_delays(
    *,
    attempts: int,
    first: float = 0.5,
    factor: float = 2.0,
    cap: float = 15.0,
    jitter: Callable[[], float],
) -> Iterator[float]:
    """Give the seconds to wait after each failed attempt but the last.

    `jitter` gives numbers from 0 to 1: each wait lies between half of the step and the whole of it, so that
    a fleet whose connections broke together does not come back together (sshd's MaxStartups drops from the
    10th on).
    """
    for number in range(max(0, attempts - 1)):
        step = min(cap, first * factor**number)
        yield step * (0.5 + 0.5 * jitter())


def call_with_retry(
    action: Callable[[], T],
    *,
    delays: Iterator[float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    on_retry: Callable[[SshError, float], None] | None = None,
) -> T:
    """Call `action` until it answers, its error is not transient, or the delays are used up.

    `on_retry` is told the error and the seconds until the next attempt.
    """
    waits = delays if delays is not None else schedule_delays(attempts=5, jitter=random.random)
    while True:
        try:
            return action()
        except SshError as error:
            wait = next(waits, None) if error.transient else None
            if wait is None:
                raise
            if on_retry is not None:
                on_retry(error, wait)
            sleep(wait)
