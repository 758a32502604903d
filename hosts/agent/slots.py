"""The fence: which attempt was the highest that a slot has seen, per controller.

A worker that was paused and wakes up after another one took over carries a lower attempt and changes nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from .call import Call, Fence
from .locks import hold_lock
from .refusal import Refusal
from .state_root import StateRoot
from .status_file import read_json, write_json


@contextmanager
def fenced_slot(call: Call, root: StateRoot, slot: str, fence: Fence) -> Iterator["Slot"]:
    """The slot, locked, after the fence was checked and recorded. Refuses with STALE_ATTEMPT."""
    path = root.slot_path(slot)
    with hold_lock(path + ".lock", sleep=call.sleep):
        found = Slot(path, fence)
        found.raise_attempt()
        yield found


class Slot:
    """SLOT.json: {"controllers": {ID: {"attempt", "run", "launch_id"}}}."""

    def __init__(self, path: str, fence: Fence) -> None:
        self._path = path
        self.fence = fence
        self._content: Dict[str, Any] = read_json(path) or {}
        controllers = self._content.setdefault("controllers", {})
        self._mine: Dict[str, Any] = controllers.setdefault(fence.controller, {})

    @property
    def launch_id(self) -> Optional[str]:
        """The launch that was started last in this slot."""
        return self._mine.get("launch_id")

    def raise_attempt(self) -> None:
        seen = self._mine.get("attempt", -1)
        if self.fence.attempt < seen:
            raise Refusal(
                "STALE_ATTEMPT",
                f"Attempt {self.fence.attempt} comes after attempt {seen} of this slot.",
                "Another worker has taken over; end this one.",
                {"attempt": self.fence.attempt, "highest": seen, "run": self._mine.get("run")},
            )
        if seen != self.fence.attempt or self._mine.get("run") != self.fence.run:
            self._mine.update(attempt=self.fence.attempt, run=self.fence.run)
            write_json(self._path, self._content)

    def occupy(self, launch_id: str) -> None:
        self._mine["launch_id"] = launch_id
        write_json(self._path, self._content)
