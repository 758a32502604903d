"""Durations and sizes of the stand-in: one table (timings.json) from recordings, divided by a speed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

MIB = 1024**2


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "timings.json").read_text("utf-8"))
    return table


@dataclass(frozen=True)
class Timings:
    """Seconds are those of the table divided by `speed`; sizes are bytes and are not."""

    speed: float = 1.0
    table: dict[str, Any] = field(default_factory=_table)

    def phase(self, name: str) -> float:
        return float(self.table["phases"][name]) / self.speed

    def signal(self, name: str) -> float:
        return float(self.table["signals"][name]) / self.speed

    def scaled(self, name: str) -> float:
        return float(self.table[name]) / self.speed

    def load(self, weight_bytes: int) -> float:
        seconds = float(self.table["phases"]["load_base"]) + weight_bytes / float(self.table["load_bytes_per_second"])
        return seconds / self.speed

    def measured(self, seconds: float) -> float:
        """Give what a log line would say of a duration that was lived through faster."""
        return seconds * self.speed

    def memory(self, name: str) -> int:
        return int(self.table["memory_mib"][name] * MIB)

    def rss(self, name: str) -> int:
        return int(self.table["rss_mib"][name] * MIB)
