"""stop, hurry and signal: end exactly what is ours, in the order that lets vLLM clean up.

TERM to the leader; TERM again where it lives on (vLLM 0.32.0 swallows one sent during start-up, measured 5 of
5); then the survivors one by one, TERM before KILL, never the group: the resource tracker removes /dev/shm
segments when the others are gone, so it goes last and by itself where it can.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .arguments import read_integer, read_name, read_number, read_text
from .call import Call
from .launches import Launch, Standing, close_launch, judge, read_launch, require_own_launch
from .locks import hold_lock
from .ownership import is_owned, role_of
from .refusal import Refusal, bad_request
from .slots import fenced_slot
from .state_root import StateRoot
from .status_file import read_json, write_json
from .supervisor import STOP_WANTED
from .system import Process

HURRY = "hurry"
SHM_PREFIXES = ("psm_", "vllm_dist_")
POLL_S = 0.1
SETTLE_S = 3.0  # after the leader: the others usually go within 0.4 s
TERM_WAIT_S = 6.0  # an orphaned EngineCore took 4.0-4.2 s after TERM (vLLM 0.32.0, measured)
KILL_WAIT_S = 5.0
TRACKER_WAIT_S = 3.0
EXIT_WAIT_S = 3.0  # the supervisor writes the exit code
SIGNALS = {
    "TERM": signal.SIGTERM,
    "KILL": signal.SIGKILL,
    "INT": signal.SIGINT,
    "STOP": signal.SIGSTOP,
    "CONT": signal.SIGCONT,
}


class Ending:
    """One launch on its way out: what was signalled, which shared memory it had."""

    def __init__(self, call: Call, root: StateRoot, launch: Launch) -> None:
        self.call = call
        self.root = root
        self.launch = launch
        self.signals: List[Dict[str, Any]] = []
        self.killed: List[int] = []
        self._shm_path = os.path.join(launch.directory, "shm.json")
        # A stop that was cut off has noted the segments; their owners may be gone by now.
        self._shm: Set[str] = set((read_json(self._shm_path) or {}).get("names", []))

    def look(self) -> Standing:
        """The launch now."""
        processes = self.call.system.processes()
        fresh = read_launch(self.root, self.launch.record.launch_id)
        self.launch = fresh or self.launch
        return judge(self.launch, processes, uid=self.call.system.uid)

    def note_shm(self, processes: Tuple[Process, ...]) -> None:
        names = {
            name
            for process in processes
            for name in self.call.system.shm_segments(process.pid)
            if name.startswith(SHM_PREFIXES)
        }
        if not names <= self._shm:
            self._shm |= names
            write_json(self._shm_path, {"names": sorted(self._shm)})

    def send(self, process: Process, name: str) -> None:
        """Signal the process if it still is ours: proved again now."""
        system = self.call.system
        now = system.process(process.pid)
        if now is None or now.start_time != process.start_time:
            return
        if not is_owned(self.launch.identity, now, system.processes(), uid=system.uid):
            return
        if system.signal(process.pid, process.start_time, SIGNALS[name]):
            self.signals.append({"pid": process.pid, "signal": name, "title": process.title})
            if name == "KILL":
                self.killed.append(process.pid)

    @property
    def hurried(self) -> bool:
        """Whether somebody asked to wait for nothing any more. A file, so that a stop under way hears it."""
        return os.path.exists(os.path.join(self.launch.directory, HURRY))

    def wait(self, seconds: float, done: Callable[[Standing], bool], *, patient: bool = True) -> Standing:
        """Look until done or the time is over; the last look. `patient`: for its own sake, so a hurry cuts it short."""
        until = self.call.system.monotonic() + seconds
        standing = self.look()
        while not done(standing) and self.call.system.monotonic() < until and not (patient and self.hurried):
            self.call.system.sleep(POLL_S)
            standing = self.look()
        return standing

    def end_leader(self, *, grace_s: float, second_term_s: float) -> Standing:
        """TERM, and TERM again; returns when the leader is gone or the grace is over."""
        standing = self.look()
        steps = (("term", min(second_term_s, grace_s)), ("second_term", max(0.0, grace_s - second_term_s)))
        for step, seconds in steps:
            if standing.leader is None or self.hurried or (step == "second_term" and seconds <= 0):
                break
            self.call.emit({"step": step, "pids": [standing.leader.pid]})
            self.send(standing.leader, "TERM")
            standing = self.wait(seconds, _leader_gone)
        return standing

    def end_survivors(self) -> Standing:
        """Whatever still lives: TERM, then KILL, the resource tracker last."""
        standing = self.look()
        if self.signals and standing.leader is None:
            standing = self.wait(SETTLE_S, _nobody)
        for step, name, seconds in (("survivors", "TERM", TERM_WAIT_S), ("kill", "KILL", KILL_WAIT_S)):
            self.note_shm(standing.processes)
            rest = _workers(standing)
            if not rest:
                break
            if name == "TERM" and self.hurried:
                continue
            # An EngineCore that gets TERM ends its own workers and cleans up; one whose workers go first does
            # not.
            rest = _heads(rest) if name == "TERM" else rest
            self.call.emit({"step": step, "pids": [process.pid for process in rest]})
            for process in rest:
                self.send(process, name)
            standing = self.wait(seconds, lambda now: not _workers(now), patient=name == "TERM")
        standing = self.wait(TRACKER_WAIT_S, _nobody, patient=False) if not _workers(standing) else standing
        trackers = [process for process in standing.processes if _is_tracker(process)]
        if trackers and not _workers(standing):
            self.call.emit({"step": "kill", "pids": [process.pid for process in trackers]})
            for process in trackers:
                self.send(process, "KILL")
            standing = self.wait(KILL_WAIT_S, _nobody, patient=False)
        return standing

    def clean_up(self, *, reason: str) -> List[str]:
        """Remove shared memory nobody maps, wait for the exit code, close the launch.

        Names of what was removed.
        """
        removed = [name for name in sorted(self._shm) if self.call.system.remove_shm(name)]
        self.wait(EXIT_WAIT_S, lambda standing: not standing.supervised, patient=False)
        close_launch(self.launch, reason=reason, at=self.call.system.now())
        return removed

    def refuse_where_alive(self, standing: Standing) -> None:
        if not standing.processes:
            return
        stuck = [process.pid for process in standing.processes if process.state == "D"]
        where = f"; {stuck} wait in the kernel (state D) and cannot be killed" if stuck else ""
        raise Refusal(
            "STILL_ALIVE",
            f"Launch {self.launch.record.launch_id} still has {len(standing.processes)} processes{where}.",
            "Look at the host's kernel log; a process in state D ends with the device's reset or a reboot."
            if stuck
            else "Ask again; if they stay, look at the host.",
            {
                "pids": [process.pid for process in standing.processes],
                "states": {str(process.pid): process.state for process in standing.processes},
                "signals": self.signals,
            },
        )


def _leader_gone(standing: Standing) -> bool:
    return standing.leader is None


def _nobody(standing: Standing) -> bool:
    return not standing.processes


def _is_tracker(process: Process) -> bool:
    return role_of(process, leader_pid=None) == "resource_tracker"


def _workers(standing: Standing) -> List[Process]:
    """All but the resource tracker."""
    return [process for process in standing.processes if not _is_tracker(process)]


def _heads(processes: List[Process]) -> List[Process]:
    """Those whose parent is none of the others."""
    pids = {process.pid for process in processes}
    return [process for process in processes if process.ppid not in pids]


def stop(call: Call) -> Dict[str, Any]:
    """End everything of the launch and close it.

    `slot`: fenced also where no such launch is known, so that a paused worker's `launch` of it comes too late.
    """
    launch_id = read_name(call.args, "launch_id")
    grace_s = read_number(call.args, "grace_s", default=30.0, high=3600)
    second_term_s = read_number(call.args, "second_term_s", default=10.0, high=3600)
    reason = read_text(call.args, "reason", "asked for")[:500]
    slot = read_name(call.args, "slot") if call.args.get("slot") is not None else None
    fence, root = call.read_fence(), call.open_root()
    if slot is not None:
        with fenced_slot(call, root, slot, fence):
            pass
    launch = require_own_launch(root, launch_id, call.options.controller)
    with fenced_slot(call, root, launch.record.slot, fence):
        _want_stop(launch)
    with hold_lock(os.path.join(launch.directory, "stop.lock"), sleep=call.sleep, wait_s=grace_s + 60):
        ending = Ending(call, root, launch)
        # A supervisor between lock and start is let through: afterwards there is something to stop, or it saw
        # the mark.
        standing = ending.wait(EXIT_WAIT_S, lambda now: now.state != "starting", patient=False)
        already_gone = not standing.processes
        if not already_gone:
            ending.note_shm(standing.processes)
            ending.end_leader(grace_s=grace_s, second_term_s=second_term_s)
            ending.refuse_where_alive(ending.end_survivors())
        call.emit({"step": "cleanup", "pids": []})
        removed = ending.clean_up(reason=reason)
    status = ending.launch.status
    return {
        "already_gone": already_gone,
        "signals": ending.signals,
        "survivors": [],
        "shm_removed": removed,
        "exit_code": status.exit_code if status else None,
        "exit_signal": status.exit_signal if status else None,
    }


def hurry(call: Call) -> Dict[str, Any]:
    """Let the stop of a launch, under way or to come, kill without waiting. Ends nothing by itself."""
    fence, root = call.read_fence(), call.open_root()
    launch = require_own_launch(root, read_name(call.args, "launch_id"), call.options.controller)
    with fenced_slot(call, root, launch.record.slot, fence):
        _mark(launch, HURRY)
    return {}


def _want_stop(launch: Launch) -> None:
    """A mark that keeps a supervisor which has not started anything yet from doing so."""
    _mark(launch, STOP_WANTED)


def _mark(launch: Launch, name: str) -> None:
    if not launch.earlier:
        path = os.path.join(launch.directory, name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def send_signal(call: Call) -> Dict[str, Any]:
    """One signal to one process of a launch, proved to be of it at that moment."""
    launch_id, pid = read_name(call.args, "launch_id"), read_integer(call.args, "pid", low=2)
    start_time = read_integer(call.args, "start_time")
    name = read_text(call.args, "signal")
    if name not in SIGNALS:
        raise bad_request(f"'signal' must be one of {', '.join(SIGNALS)}.", field="signal")
    fence, root = call.read_fence(), call.open_root()
    launch = require_own_launch(root, launch_id, call.options.controller)
    with fenced_slot(call, root, launch.record.slot, fence):
        process: Optional[Process] = call.system.process(pid)
        if process is None or process.gone or process.start_time != start_time:
            raise _process_gone(pid)
        if not is_owned(launch.identity, process, call.system.processes(), uid=call.system.uid):
            raise Refusal(
                "NOT_OURS",
                f"Process {pid} is not of launch {launch_id}.",
                "Look at the processes that 'observe' names.",
                {"pid": pid, "title": process.title},
            )
        if not call.system.signal(pid, start_time, SIGNALS[name]):
            raise _process_gone(pid)
    return {"sent": True}


def _process_gone(pid: int) -> Refusal:
    return Refusal("PROCESS_GONE", f"Process {pid} is gone.", "Observe again.", {"pid": pid})
