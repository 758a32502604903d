"""sweep: find launches whose leader is gone while others of it live, and end those on request."""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

from .arguments import read_flag, read_name, read_texts
from .call import Call, Fence
from .launches import Standing, judge, read_launches, require_own_launch
from .locks import hold_lock
from .refusal import Refusal, bad_request
from .slots import fenced_slot
from .state_root import StateRoot
from .stop import Ending
from .system import Process
from .views import memory_by_process, process_views, spared_views

Named = FrozenSet[Tuple[int, int]]  # (pid, start time)


def sweep(call: Call) -> Dict[str, Any]:
    root = call.open_root()
    if read_flag(call.args, "preview", default=True):
        return {"orphans": find_orphans(call, root)}
    fence = call.read_fence()
    launch_ids = [
        read_name({"launches": name}, "launches") for name in read_texts(call.args, "launches", optional=False)
    ]
    named = read_named(call.args)
    swept: List[Dict[str, Any]] = []
    refused: List[Dict[str, Any]] = []
    for launch_id in dict.fromkeys(launch_ids):
        try:
            swept.append(sweep_one(call, root, fence, launch_id, named))
        except Refusal as refusal:  # noqa: PERF203 - one that is refused does not keep the others
            refused.append({"launch_id": launch_id, **refusal.body()})
    return {"swept": swept, "refused": refused}


def read_named(args: Mapping[str, Any]) -> Optional[Named]:
    """The processes that a preview named, and that alone may be signalled; None where the request names none."""
    given = args.get("processes")
    if given is None:
        return None
    entries = given if isinstance(given, list) else [None]
    pairs = [
        (item["pid"], item["start_time"])
        for item in entries
        if isinstance(item, dict) and isinstance(item.get("pid"), int) and isinstance(item.get("start_time"), int)
    ]
    if len(pairs) != len(entries):
        raise bad_request("'processes' must be a list of objects with pid and start_time.", field="processes")
    return frozenset(pairs)


def find_orphans(call: Call, root: StateRoot) -> List[Dict[str, Any]]:
    """Orphaned launches of this controller and the device memory they hold, None where not known."""
    memory = memory_by_process(call.system.device_use())
    processes = call.system.processes()
    found: List[Dict[str, Any]] = []
    for launch in read_launches(root):
        if launch.record.controller != call.options.controller:
            continue
        standing = judge(launch, processes, uid=call.system.uid)
        if standing.state != "orphaned":
            continue
        held = [used for process in standing.processes for used in memory.get(process.pid, {}).values()]
        known = [used for used in held if used is not None]
        found.append(
            {
                "launch_id": launch.record.launch_id,
                "instance": launch.record.instance,
                "processes": process_views(standing, memory),
                "left_alone": spared_views(standing),
                "device_memory": sum(known) if known else None,
            }
        )
    return found


class NamedEnding(Ending):
    """An ending that touches only what a preview named; each is proven again right before its signal, as ever."""

    named: Optional[Named] = None

    def send(self, process: Process, name: str) -> None:
        if self.named is None or (process.pid, process.start_time) in self.named:
            super().send(process, name)

    def refuse_where_new(self, standing: Standing) -> None:
        """What came after the preview is ours and was shown to nobody: it waits for the next preview."""
        if self.named is None:
            return
        new = [process.pid for process in standing.processes if (process.pid, process.start_time) not in self.named]
        if new:
            raise Refusal(
                "NOT_NAMED",
                f"Launch {self.launch.record.launch_id} has {len(new)} processes that the preview did not name.",
                "Plan the sweep again: its preview names them.",
                {"pids": new},
            )


def sweep_one(
    call: Call, root: StateRoot, fence: Fence, launch_id: str, named: Optional[Named] = None
) -> Dict[str, Any]:
    """End what is left of one launch. Nothing left is no error: another sweep was faster."""
    launch = require_own_launch(root, launch_id, call.options.controller)
    with fenced_slot(call, root, launch.record.slot, fence), hold_lock(
        os.path.join(launch.directory, "stop.lock"), sleep=call.sleep
    ):
        ending = NamedEnding(call, root, launch)
        ending.named = named
        standing = ending.look()
        if standing.leader is not None or standing.state == "starting":
            raise Refusal(
                "LEADER_ALIVE",
                f"Launch {launch_id} is no orphan: its leader lives.",
                "Stop the launch instead.",
                {"pid": standing.leader.pid if standing.leader else None},
            )
        # Before anything is touched: half a launch ended is worse than a sweep that is planned once more.
        ending.refuse_where_new(standing)
        ended = [process.pid for process in standing.processes]
        ending.note_shm(standing.processes)
        standing = ending.end_survivors()
        ending.refuse_where_new(standing)
        ending.refuse_where_alive(standing)
        removed = ending.clean_up(reason="swept")
    return {"launch_id": launch_id, "killed": ended, "signals": ending.signals, "shm_removed": removed}
