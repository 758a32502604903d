"""tail: the log of one launch, from a byte offset, until the launch has ended and all is read."""

from __future__ import annotations

from typing import Any, Dict, Optional

from .arguments import read_flag, read_integer, read_name
from .call import Call
from .follow import LogFollower
from .launches import Launch, judge_one, require_launch
from .refusal import Refusal
from .state_root import StateRoot
from .status_file import read_status
from .system import System
from .views import log_size

POLL_S = 0.2
JUDGE_EVERY_S = 1.0


class EndWatch:
    """Whether a launch has ended.

    The process table is read at most once a second, and only when the leader is gone.
    """

    def __init__(self, system: System, root: StateRoot, launch: Launch) -> None:
        self._system = system
        self._root = root
        self._launch = launch
        self._next = system.monotonic()
        self.state = "unknown"

    def has_ended(self) -> bool:
        """True once nothing of the launch lives; stays True."""
        if self.state == "exited":
            return True
        now = self._system.monotonic()
        if now >= self._next:
            self._next = now + JUDGE_EVERY_S
            self.state = "running" if self._leader_lives() else self._judge()
        return self.state == "exited"

    def _judge(self) -> str:
        return judge_one(self._system, self._root, self._launch.record.launch_id).state

    def _leader_lives(self) -> bool:
        status = read_status(self._launch.directory)
        if self._launch.earlier or status is None or status.state != "running" or status.pid is None:
            return False
        leader = self._system.process(status.pid)
        return leader is not None and leader.start_time == status.start_time and not leader.gone


def tail(call: Call) -> Dict[str, Any]:
    launch_id = read_name(call.args, "launch_id")
    offset = read_integer(call.args, "offset", default=0)
    follow = read_flag(call.args, "follow", default=True)
    left: Optional[int] = read_integer(call.args, "max_bytes", default=None)
    root = call.open_root()
    launch = require_launch(root, launch_id)
    _refuse_beyond_end(launch.record.log_path, offset)
    follower = LogFollower(launch.record.log_path, offset)
    watch = EndWatch(call.system, root, launch)
    while left is None or left > 0:
        # Asked before the read: what was written before the end is then read after it.
        ended = watch.has_ended()
        event = follower.read(call.system.monotonic(), final=ended or not follow, limit=left)
        if event is not None:
            call.emit(event)
            left = None if left is None else left - (event["next"] - event["offset"])
            call.sleep(0)
            continue
        if ended or not follow or watch.state == "unknown":
            return {"offset": follower.offset, "ended": ended}
        call.sleep(POLL_S)
    return {"offset": follower.offset, "ended": False}


def _refuse_beyond_end(path: str, offset: int) -> None:
    size = log_size(path) or 0
    if offset > size:
        raise Refusal(
            "OFFSET_BEYOND_END",
            f"The log has {size} bytes; byte {offset} was asked for.",
            "Read it again from 0: the file is another one than before.",
            {"offset": offset, "size": size},
        )
