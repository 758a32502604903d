"""sweep: find launches whose leader is gone while others of it live, and end those on request."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from .arguments import read_flag, read_name, read_texts
from .call import Call, Fence
from .launches import judge, read_launches, require_own_launch
from .locks import hold_lock
from .refusal import Refusal
from .slots import fenced_slot
from .state_root import StateRoot
from .stop import Ending
from .views import memory_by_process, process_views


def sweep(call: Call) -> Dict[str, Any]:
    root = call.open_root()
    if read_flag(call.args, "preview", default=True):
        return {"orphans": find_orphans(call, root)}
    fence = call.read_fence()
    launch_ids = [
        read_name({"launches": name}, "launches") for name in read_texts(call.args, "launches", optional=False)
    ]
    swept: List[Dict[str, Any]] = []
    refused: List[Dict[str, Any]] = []
    for launch_id in dict.fromkeys(launch_ids):
        try:
            swept.append(sweep_one(call, root, fence, launch_id))
        except Refusal as refusal:  # noqa: PERF203 - one that is refused does not keep the others
            refused.append({"launch_id": launch_id, **refusal.body()})
    return {"swept": swept, "refused": refused}


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
                "device_memory": sum(known) if known else None,
            }
        )
    return found


def sweep_one(call: Call, root: StateRoot, fence: Fence, launch_id: str) -> Dict[str, Any]:
    """End what is left of one launch. Nothing left is no error: another sweep was faster."""
    launch = require_own_launch(root, launch_id, call.options.controller)
    with fenced_slot(call, root, launch.record.slot, fence), hold_lock(
        os.path.join(launch.directory, "stop.lock"), sleep=call.sleep
    ):
        ending = Ending(call, root, launch)
        standing = ending.look()
        if standing.leader is not None or standing.state == "starting":
            raise Refusal(
                "LEADER_ALIVE",
                f"Launch {launch_id} is no orphan: its leader lives.",
                "Stop the launch instead.",
                {"pid": standing.leader.pid if standing.leader else None},
            )
        ended = [process.pid for process in standing.processes]
        ending.note_shm(standing.processes)
        ending.refuse_where_alive(ending.end_survivors())
        removed = ending.clean_up(reason="swept")
    return {"launch_id": launch_id, "killed": ended, "signals": ending.signals, "shm_removed": removed}
