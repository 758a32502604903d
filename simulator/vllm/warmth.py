"""What earlier starts left behind on a host, and how warm that makes the next one.

The recorded logs tell four kinds apart (rig/phase_times.py): the first start of all imports from a cold disk
and makes every kernel; new flags compile; the second start of the same flags still makes some kernels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

COMPLETE_AFTER = 2  # starts of the same flags until nothing is left to be made


class Warmth(StrEnum):
    COLD = "cold"
    NEW = "new"
    SECOND = "second"
    WARM = "warm"


@dataclass
class Caches:
    """Of one host: flags that were compiled, and how often each came up. Flags are any text that names them."""

    compiled: set[str] = field(default_factory=set)
    came_up: Counter[str] = field(default_factory=Counter)

    def find_warmth(self, flags: str | None) -> Warmth:
        """How warm a start is that begins now; None: its flags are not read yet."""
        if not self.came_up:
            return Warmth.COLD
        if flags is None:
            return Warmth.WARM
        if flags not in self.compiled:
            return Warmth.NEW
        return Warmth.WARM if self.came_up[flags] >= COMPLETE_AFTER else Warmth.SECOND
