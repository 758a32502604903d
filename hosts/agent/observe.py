"""observe and status: what of ours runs, what of others, and what else holds a device."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence, Tuple

from .arguments import read_name
from .call import Call
from .launches import Standing, close_where_ended, judge, judge_one, read_launches
from .ownership import group_by_marker, role_of
from .state_root import StateRoot
from .system import DeviceUse, Process, System
from .views import DeviceMemory, device_view, launch_view, memory_by_process, process_view, unknown_view


def utc_text(seconds: float) -> str:
    """UTC, ISO 8601 with milliseconds."""
    whole = int(seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((seconds - whole) * 1000):03d}Z"


def judge_all(call: Call, root: StateRoot, processes: Sequence[Process]) -> List[Standing]:
    """Every launch of this boot, those that ended by themselves closed."""
    now, controller = call.system.now(), call.options.controller
    return [
        close_where_ended(judge(launch, processes, uid=call.system.uid), controller=controller, now=now)
        for launch in read_launches(root)
    ]


def own_views(
    call: Call, standings: Sequence[Standing], processes: Sequence[Process], memory: DeviceMemory
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """(launches of this controller, launches of others)."""
    own: List[Dict[str, Any]] = []
    other: List[Dict[str, Any]] = []
    for standing in standings:
        ours = standing.launch.record.controller == call.options.controller
        (own if ours else other).append(launch_view(standing, memory))
    known = {standing.launch.record.launch_id for standing in standings}
    for launch_id, group in group_by_marker(processes, uid=call.system.uid).items():
        if launch_id not in known:
            ours = group[0].controller == call.options.controller
            (own if ours else other).append(unknown_view(launch_id, group, memory))
    return own, other


def foreign_views(
    system: System, devices: Sequence[DeviceUse], views: Sequence[Dict[str, Any]], memory: DeviceMemory
) -> List[Dict[str, Any]]:
    """Processes on a device that belong to no launch.

    One that cannot be seen (another PID namespace) is left to `devices`.
    """
    known = {process["pid"] for view in views for process in view["processes"]}
    pids = sorted({pid for device in devices for pid, _used in device.processes} - known)
    found = (system.process(pid) for pid in pids)
    return [
        process_view(process, role=role_of(process, leader_pid=None), memory=memory)
        for process in found
        if process is not None and not process.gone
    ]


def observe(call: Call) -> Dict[str, Any]:
    root = call.open_root()
    devices = call.system.device_use()
    processes = call.system.processes()
    memory = memory_by_process(devices)
    own, other = own_views(call, judge_all(call, root, processes), processes, memory)
    return {
        "boot_id": root.boot_id,
        "clock": utc_text(call.system.now()),
        "launches": own,
        "other": other,
        "foreign": foreign_views(call.system, devices, [*own, *other], memory),
        "devices": [device_view(device) for device in devices],
    }


def status(call: Call) -> Dict[str, Any]:
    root = call.open_root()
    standing = judge_one(call.system, root, read_name(call.args, "launch_id"))
    standing = close_where_ended(standing, controller=call.options.controller, now=call.system.now())
    memory = memory_by_process(call.system.device_use()) if standing.processes else {}
    return launch_view(standing, memory)
