"""Whose is a process? Pure: processes and launches go in, the answer comes out.

Two proofs, either suffices, both need our uid:

1. The environment carries FLEETADMIN_LAUNCH=LAUNCH_ID (kept by SPT_NOENV=1; without it setproctitle wipes it
   in EngineCore and workers: measured, vLLM 0.32.0 CPU build).
2. The process is in the recorded session and started no earlier than the leader, while the launch is not
   closed. Orphans keep the session id of a leader that was killed (measured, vLLM 0.25.1 and 0.32.0).

The kernel may give a session id again once the whole session is gone. So the second proof is void when the
leader of that session is another process than the recorded one, and when a marker says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from .system import Process

ROLE_TITLES = (
    ("resource_tracker", "resource_tracker"),
    ("DPCoordinator", "dp_coordinator"),
    ("EngineCore", "engine_core"),
    ("APIServer", "api_server"),
    ("Worker", "worker"),
)


@dataclass(frozen=True)
class Identity:
    """What proves a process to be of a launch. None: not known (the launch never came so far)."""

    launch_id: str
    leader_pid: Optional[int] = None
    leader_start: Optional[int] = None
    sid: Optional[int] = None
    closed: bool = False


def owned_processes(identity: Identity, processes: Sequence[Process], *, uid: int) -> List[Process]:
    """The live processes of one launch, oldest first."""
    by_session = _session_holds(identity, processes)
    found = [
        process
        for process in processes
        if process.uid == uid and not process.gone and _is_owned(identity, process, by_session=by_session)
    ]
    return sorted(found, key=lambda process: (process.start_time, process.pid))


def is_owned(identity: Identity, process: Process, processes: Sequence[Process], *, uid: int) -> bool:
    """The same question for one process, asked again at the moment of a signal."""
    return proof_of(identity, process, processes, uid=uid) is not None


def proof_of(identity: Identity, process: Process, processes: Sequence[Process], *, uid: int) -> Optional[str]:
    """Why a process is of the launch; None where nothing proves it.

    `marker`: the launch id in its environment. `leader`: the recorded pid and start time. `session`: the recorded session,
    started no earlier than the leader.
    """
    by_session = _session_holds(identity, processes)
    if process.uid != uid or process.gone or not _is_owned(identity, process, by_session=by_session):
        return None
    if process.marker is not None:
        return "marker"
    return "leader" if process.pid == identity.leader_pid else "session"


def find_spared(identity: Identity, processes: Sequence[Process], *, uid: int) -> List[Tuple[Process, str]]:
    """Live processes that look as if they were of the launch and are not proven to be: each with why it is left alone."""
    found = [(process, _why_spared(identity, process, processes, uid=uid)) for process in processes]
    return [(process, why) for process, why in found if why is not None]


def _why_spared(identity: Identity, process: Process, processes: Sequence[Process], *, uid: int) -> Optional[str]:
    in_session = identity.sid is not None and process.sid == identity.sid
    alike = role_of(process, leader_pid=None) not in ("other", "resource_tracker")
    if process.gone or not (in_session or alike or process.marker == identity.launch_id):
        return None
    if proof_of(identity, process, processes, uid=uid) is not None:
        return None
    if process.uid != uid:
        return "OTHER_USER"
    if process.marker is not None:
        return "OTHER_LAUNCH"
    if not in_session:
        return "NO_PROOF"
    early = identity.leader_start is not None and process.start_time < identity.leader_start
    return "BEFORE_LEADER" if early else "SESSION_REUSED"


def find_leader(identity: Identity, owned: Iterable[Process]) -> Optional[Process]:
    """The process that was started.

    Found by its marker where the supervisor died before it could write the pid.
    """
    for process in owned:
        if identity.leader_pid is None:
            if process.marker == identity.launch_id and process.pid == process.sid:
                return process
        elif process.pid == identity.leader_pid and process.start_time == identity.leader_start:
            return process
    return None


def _is_owned(identity: Identity, process: Process, *, by_session: bool) -> bool:
    if process.marker is not None:
        return process.marker == identity.launch_id
    return (
        by_session
        and process.sid == identity.sid
        and identity.leader_start is not None
        and process.start_time >= identity.leader_start
    )


def _session_holds(identity: Identity, processes: Sequence[Process]) -> bool:
    """Whether the recorded session id still is the recorded session."""
    if identity.closed or identity.sid is None or identity.leader_start is None:
        return False
    return all(
        process.start_time == identity.leader_start
        for process in processes
        if process.pid == process.sid == identity.sid
    )


def role_of(process: Process, *, leader_pid: Optional[int]) -> str:
    """The part a process plays, by its title.

    `VLLM_PROCESS_NAME_PREFIX` changes what stands before the `::`.
    """
    for text, role in ROLE_TITLES:
        if text in process.title and (role == "resource_tracker" or "::" + text in process.title):
            return role
    return "api_server" if process.pid == leader_pid else "other"


def group_by_marker(processes: Iterable[Process], *, uid: int) -> Dict[str, List[Process]]:
    """Live processes of ours that carry a marker, by launch id."""
    groups: Dict[str, List[Process]] = {}
    for process in processes:
        if process.uid == uid and process.marker and not process.gone:
            groups.setdefault(process.marker, []).append(process)
    return groups
