"""watch.

One stream per host with samples, changed launches and the logs of all live launches of this controller.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from .arguments import read_number, read_object
from .call import Call
from .follow import LogFollower, read_available
from .launches import Standing
from .observe import judge_all, own_views, utc_text
from .refusal import bad_request
from .state_root import StateRoot
from .system import DeviceUse
from .views import device_view, memory_by_process

LOG_POLL_S = 0.25
LAUNCH_POLL_S = 1.0
EVENTS_PER_LOG = 4  # a launch that floods its log does not keep the others waiting
# These change all the time and are read from the samples or by `observe`.
RESTLESS = ("rss", "device_memory", "state")


class Watch:
    """The state of one stream."""

    def __init__(self, call: Call, root: StateRoot, *, interval_s: float, offsets: Dict[str, int]) -> None:
        self.call = call
        self.root = root
        self.interval_s = interval_s
        self.offsets = offsets
        self.followers: Dict[str, LogFollower] = {}
        self.ended: Dict[str, bool] = {}
        self.finished: Dict[str, bool] = {}
        self._devices: List[DeviceUse] = []
        self._last: Optional[List[Dict[str, Any]]] = None

    def run(self) -> None:
        """Until cancelled."""
        system = self.call.system
        next_sample = next_look = system.monotonic()
        while True:
            now = system.monotonic()
            if now >= next_sample:
                next_sample = now + self.interval_s
                self.send_sample()
            if now >= next_look:
                next_look = now + LAUNCH_POLL_S
                self.look_at_launches()
            self.send_logs()
            self.call.sleep(LOG_POLL_S)

    def send_sample(self) -> None:
        system = self.call.system
        self._devices = system.device_use()
        total, available = system.memory()
        self.call.emit(
            {
                "sample": {
                    "clock": utc_text(system.now()),
                    "devices": [device_view(device) for device in self._devices],
                    "load": list(system.load_average()),
                    "memory": {"total": total, "available": available},
                }
            }
        )

    def look_at_launches(self) -> None:
        processes = self.call.system.processes()
        standings = judge_all(self.call, self.root, processes)
        own, _other = own_views(self.call, standings, processes, memory_by_process(self._devices))
        still = [_without_restless(view) for view in own]
        if still != self._last:
            self._last = still
            self.call.emit({"launches": own})
        for standing in standings:
            if standing.launch.record.controller == self.call.options.controller:
                self._follow(standing)

    def _follow(self, standing: Standing) -> None:
        """Live launches are followed from the start or the asked offset.

        Ended ones only where an offset was asked for.
        """
        record = standing.launch.record
        launch_id = record.launch_id
        self.ended[launch_id] = standing.state in ("exited", "unknown")
        if launch_id in self.followers or (self.ended[launch_id] and launch_id not in self.offsets):
            return
        self.followers[launch_id] = LogFollower(record.log_path, self.offsets.get(launch_id, 0))

    def send_logs(self) -> None:
        now = self.call.system.monotonic()
        for launch_id, follower in self.followers.items():
            if self.finished.get(launch_id):
                continue
            # Ended as of the last look: everything it wrote is in the file by now.
            ended = self.ended[launch_id]
            events = read_available(follower, now, final=ended, most=EVENTS_PER_LOG)
            for event in events:
                self.call.emit({"log": {"launch_id": launch_id, **event}})
            if ended and not events:
                self.finished[launch_id] = True


def _without_restless(view: Dict[str, Any]) -> Dict[str, Any]:
    still = {name: value for name, value in view.items() if name != "log_size"}
    still["processes"] = [
        {
            **{name: value for name, value in process.items() if name not in RESTLESS},
            "stopped": process["state"] == "T",
        }
        for process in view["processes"]
    ]
    return still


def watch(call: Call) -> Dict[str, Any]:
    interval_s = read_number(call.args, "interval_s", default=5.0, low=0.1, high=3600)
    offsets = read_object(call.args, "logs") or {}
    if not all(isinstance(value, int) and value >= 0 for value in offsets.values()):
        raise bad_request("'logs' must map launch ids to byte offsets.", field="logs")
    Watch(call, call.open_root(), interval_s=interval_s, offsets=offsets).run()
    return {}
