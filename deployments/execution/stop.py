"""Stopping one launch: end it, and see its memory come back."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deployments.execution.ending import NOTHING_LEFT, Ending, request_change
from deployments.execution.outcomes import Done, Failed, Outcome
from hosts.agent_session import AgentRefused


class StopOne:
    """One launch of a plan that ends it. `observe`: asks the host what lives there.

    `sweep`: for the rest of an orphan, what the plan named of it: {"processes": [...]}; {} for plans that named none.
    """

    def __init__(
        self,
        *,
        launch_id: str,
        slot: str,
        ending: Ending,
        observe: Callable[[], Mapping[str, Any]],
        sweep: Mapping[str, Any] | None,
    ) -> None:
        self.id = launch_id
        self.slot = slot
        self.ending = ending
        self.observe = observe
        self.named = sweep
        self.remove = self.stop if sweep is None else self.sweep

    def run(self) -> Outcome:
        self.ending.listener.stopping(self.id)
        pids = self.pids()
        try:
            report = self.remove()
        except AgentRefused as refusal:
            return Failed(refusal.code, refusal.message, refusal.next_step, refusal.numbers)
        self.ending.listener.stopped(self.id, report)
        left = self.wait_for_memory(pids)
        return Done(report) if not left else memory_not_back(left)

    def pids(self) -> frozenset[int]:
        views = [view for view in self.observe()["launches"] if view["launch_id"] == self.id]
        return frozenset(process["pid"] for view in views for process in view["processes"])

    def stop(self) -> Mapping[str, Any]:
        return self.ending.end(self.id, slot=self.slot, reason="stop")

    def sweep(self) -> Mapping[str, Any]:
        report = request_change(
            self.ending.session,
            "sweep",
            {"preview": False, "launches": [self.id], **(self.named or {})},
            fence=self.ending.fence,
            timeout=self.ending.limits.stop,
        )
        for refused in report["refused"]:
            if refused["code"] == "LAUNCH_UNKNOWN":
                return NOTHING_LEFT
            raise AgentRefused(
                code=refused["code"], message=refused["message"], next_step="Look at its processes on the page."
            )
        return dict(report["swept"][0])

    def wait_for_memory(self, pids: frozenset[int]) -> Mapping[str, int]:
        """Bytes by device that these processes, which have ended, still hold; a driver gives them back a moment later."""
        clock, limits = self.ending.clock, self.ending.limits
        until = clock.monotonic() + limits.memory_back
        while True:
            left = held_by(pids, self.observe()["devices"])
            if not left or clock.monotonic() > until:
                return left
            clock.sleep(limits.probe_pause)


def held_by(pids: frozenset[int], devices: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes by device uuid that processes of these ids hold."""
    held = {
        device["uuid"]: sum(item["used"] or 0 for item in device["processes"] if item["pid"] in pids)
        for device in devices
    }
    return {uuid: size for uuid, size in held.items() if size}


def memory_not_back(left: Mapping[str, int]) -> Failed:
    """All processes are gone and the driver still counts memory as theirs."""
    uuid, size = next(iter(left.items()))
    return Failed(
        "MEMORY_NOT_BACK",
        f"Its processes have ended, but {size / 2**30:.2f} GiB of {uuid} are still counted as theirs.",
        "Look at the device with nvidia-smi on the host; a driver that does not let go needs a reset by its administrator.",
        dict(left),
    )
