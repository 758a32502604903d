"""Whether and when a failed connection is tried again: pure judgements, and a caller that follows them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from hosts.ssh.errors import AuthRefused, HostKeyChanged, HostKeyUnknown, SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# Repeating these locks accounts, earns sshd's penalties (PerSourcePenalties, OpenSSH 9.8 and newer) and trains
# people to click through. MACHINE_CHANGED is the agent's word for another machine behind a right key.
WAIT_FOR_A_PERSON = frozenset({*AuthRefused.texts, *HostKeyUnknown.texts, *HostKeyChanged.texts, "MACHINE_CHANGED"})
LONGEST_WAIT_S = 60.0


def waits_for_person(code: str | None) -> bool:
    """Tell whether a failure with this code is never repeated until a person has done something about it."""
    return code in WAIT_FOR_A_PERSON


def wait_before_retry(
    code: str, *, failures: int, jitter: Callable[[], float], first: float = 1.0, cap: float = LONGEST_WAIT_S
) -> float | None:
    """Give the seconds until a host is tried again by itself, None for never.

    `failures` counts those in a row, this one included; `jitter` as in `schedule_delays`.
    """
    if waits_for_person(code):
        return None
    # The exponent is bounded: a host may be away for weeks.
    step = min(cap, first * 2.0 ** min(max(0, failures - 1), 30))
    return step * (0.5 + 0.5 * jitter())


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
