"""Durations and sizes of the stand-in, divided by a speed.

phase_times.json: the phases of a start on a GPU, made by rig/phase_times.py from recorded logs.
timings.json: what those logs do not tell, each part with its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulator.vllm.pace import Crowd
from simulator.vllm.warmth import Warmth

MIB = 1024**2
# Where a figure has no value for a warmth, that of the next one counts.
NEXT = {Warmth.COLD: Warmth.NEW, Warmth.NEW: Warmth.WARM, Warmth.SECOND: Warmth.WARM}


@cache
def _read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / name).read_text("utf-8"))
    return table


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds are those of the tables divided by `speed`; sizes are bytes and are not."""

    speed: float
    has_gpu: bool

    def phase(self, name: str, *, warmth: Warmth) -> float:
        """Seconds of a phase of a start alone."""
        if self.has_gpu:
            return float(_read("phase_times.json")["phases"][name]["alone"][warmth]["seconds"]) / self.speed
        values = _read("timings.json")["cpu"]["phases"][name]
        while warmth not in values:
            warmth = NEXT[warmth]
        return float(values[warmth]) / self.speed

    def growth(self, name: str) -> float:
        """How many times longer a phase was in the recorded crowd; 1 where that was not recorded."""
        phases = _read("phase_times.json")["phases"] if self.has_gpu else {}
        return float(phases[name]["growth"]) if name in phases else 1.0

    @property
    def crowd(self) -> Crowd:
        times = _read("phase_times.json")
        return Crowd(instances=times["instances"], cores=times["cores"])

    def read_weights(self, size: int) -> float:
        """Seconds that reading `size` bytes from the disk adds."""
        return size / float(_read("timings.json")["disk"]["bytes_per_second"]) / self.speed

    @property
    def title_after(self) -> float:
        return float(_read("timings.json")["processes"]["title_after"]) / self.speed

    def answer(self, name: str) -> float:
        return float(_read("timings.json")["answers"][name]) / self.speed

    def signal(self, name: str) -> float:
        return float(_read("timings.json")["signals"]["seconds"][name]) / self.speed

    def measured(self, seconds: float) -> float:
        """Give what a log line would say of a duration that was lived through faster."""
        return seconds * self.speed

    def memory(self, name: str) -> int:
        return int(_read("timings.json")["memory"]["mib"][name] * MIB)

    def rss(self, name: str) -> int:
        return int(_read("timings.json")["processes"]["rss_mib"][name] * MIB)
