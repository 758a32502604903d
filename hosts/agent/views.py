"""LaunchView, ProcessView and DeviceUse: the JSON of docs/agent-protocol.md."""

from __future__ import annotations

import os
import pwd
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .launches import Standing, describe_exit
from .ownership import role_of
from .system import DeviceUse, Process

MOST_SPARED = 32
DeviceMemory = Mapping[int, Dict[str, Optional[int]]]


def memory_by_process(devices: Sequence[DeviceUse]) -> Dict[int, Dict[str, Optional[int]]]:
    """{pid: {device UUID: bytes, None where the driver does not say}}."""
    found: Dict[int, Dict[str, Optional[int]]] = {}
    for device in devices:
        for pid, used in device.processes:
            found.setdefault(pid, {})[device.uuid] = used
    return found


def process_view(process: Process, *, role: str, memory: DeviceMemory) -> Dict[str, Any]:
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "start_time": process.start_time,
        "sid": process.sid,
        "state": process.state,
        "title": process.title,
        "rss": process.rss,
        "role": role,
        "user": user_name(process.uid),
        "device_memory": dict(memory.get(process.pid, {})),
    }


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def process_views(standing: Standing, memory: DeviceMemory) -> List[Dict[str, Any]]:
    leader_pid = standing.launch.identity.leader_pid or (standing.leader.pid if standing.leader else None)
    return [
        {**process_view(process, role=role_of(process, leader_pid=leader_pid), memory=memory), "proof": proof}
        for process, proof in zip(standing.processes, standing.proofs)
    ]


def spared_views(standing: Standing) -> List[Dict[str, Any]]:
    """What a sweep of this launch would find and leave alone."""
    return [
        {
            "pid": process.pid,
            "start_time": process.start_time,
            "title": process.title,
            "user": user_name(process.uid),
            "why": why,
        }
        for process, why in standing.spared[:MOST_SPARED]
    ]


def launch_view(standing: Standing, memory: DeviceMemory) -> Dict[str, Any]:
    launch, leader = standing.launch, standing.leader
    record, status = launch.record, launch.status
    return {
        "launch_id": record.launch_id,
        "controller": record.controller,
        "instance": record.instance,
        "slot": record.slot,
        "state": standing.state,
        "pid": leader.pid if leader else (status.pid if status else None),
        "start_time": leader.start_time if leader else (status.start_time if status else None),
        "sid": leader.sid if leader else (status.sid if status else None),
        **describe_exit(status),
        "started_at": status.started_at if status else None,
        "ended_at": status.ended_at if status else None,
        "error": status.error if status else None,
        "address": record.address,
        "port": record.port,
        "log_path": record.log_path,
        "log_size": log_size(record.log_path),
        "closed": launch.closed,
        "processes": process_views(standing, memory),
        "left_alone": spared_views(standing),
    }


def log_size(path: str) -> Optional[int]:
    try:
        return os.lstat(path).st_size
    except OSError:
        return None


def unknown_view(launch_id: str, processes: Sequence[Process], memory: DeviceMemory) -> Dict[str, Any]:
    """Processes that carry a marker of a launch the state root does not know.

    Shown, never touched unasked.
    """
    leader = next((process for process in processes if process.pid == process.sid), None)
    return {
        "launch_id": launch_id,
        "controller": processes[0].controller,
        "instance": None,
        "slot": None,
        "state": "unknown",
        "pid": leader.pid if leader else None,
        "start_time": leader.start_time if leader else None,
        "sid": processes[0].sid,
        "exit_code": None,
        "exit_signal": None,
        "started_at": None,
        "ended_at": None,
        "error": None,
        "address": None,
        "port": None,
        "log_path": None,
        "log_size": None,
        "closed": False,
        "left_alone": [],
        "processes": [
            {
                **process_view(
                    process, role=role_of(process, leader_pid=leader.pid if leader else None), memory=memory
                ),
                "proof": "marker",
            }
            for process in processes
        ],
    }


def device_view(device: DeviceUse) -> Dict[str, Any]:
    found = asdict(device)
    found["processes"] = [{"pid": pid, "used": used} for pid, used in device.processes]
    return found
