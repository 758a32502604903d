"""How fast the starts of one host pass while they share its cores.

The recordings have two points: one start, and three at once on 16 cores. Between them and beyond, the time
that others add is taken to grow with their number and to fall with the cores (assumed, not recorded).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

OVER_S = 1e-6  # less than this is the clock's own rounding, and may never pass


@dataclass(frozen=True)
class Crowd:
    """How many starts at once were recorded, on how many cores."""

    instances: int
    cores: int


def find_factor(*, growth: float, starting: int, cores: int, recorded: Crowd) -> float:
    """Return by what a phase is longer now: 1 for a start alone, `growth` in the crowd that was recorded."""
    others = max(0, starting - 1) / (recorded.instances - 1)
    return 1.0 + (growth - 1.0) * others * recorded.cores / cores


@dataclass
class Pace:
    """The starts of one host that pass through a phase now. Lives in the fleet's event loop."""

    cores: int
    starting: int = field(default=0, init=False)
    _waiting: set[asyncio.Future[None]] = field(default_factory=set, init=False)

    async def pass_time(self, seconds: float, *, growth: float, recorded: Crowd) -> None:
        """Wait until `seconds` of a start alone have passed.

        Integrated in slices that end where the number of starts changes: in each, the start gets on by the
        time that passed over the factor of that slice.
        """
        clock = asyncio.get_running_loop().time
        left = seconds
        self._change(1)
        try:
            while left > OVER_S:
                factor = find_factor(growth=growth, starting=self.starting, cores=self.cores, recorded=recorded)
                began = clock()
                await self._wait(left * factor)
                left -= (clock() - began) / factor
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        self.starting += by
        for until in self._waiting:
            _wake(until)

    async def _wait(self, seconds: float) -> None:
        """Until the seconds are over, or the number of starts changes."""
        loop = asyncio.get_running_loop()
        until = loop.create_future()
        timer = loop.call_later(seconds, _wake, until)
        self._waiting.add(until)
        try:
            await until
        finally:
            timer.cancel()
            self._waiting.discard(until)


def _wake(until: asyncio.Future[None]) -> None:
    if not until.done():
        until.set_result(None)
