"""Launches as the disk and the process table show them together."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .locks import is_locked
from .ownership import Identity, find_leader, find_spared, owned_processes, proof_of
from .refusal import Refusal
from .state_root import StateRoot
from .status_file import Status, read_json, read_status, write_json
from .supervisor import SUPERVISOR_LOCK
from .system import Process, System

REQUEST_NAME = "request.json"
CLOSED_NAME = "closed.json"


@dataclass(frozen=True)
class Record:
    """request.json: what was asked for. Variables by name only: their values may be secrets."""

    launch_id: str
    controller: str
    instance: str
    slot: str
    argv: List[str]
    env_names: List[str]
    log_path: str
    temp_directory: str
    cwd: Optional[str] = None
    address: Optional[str] = None
    port: Optional[int] = None
    devices: Tuple[str, ...] = ()
    model_path: Optional[str] = None
    run: Optional[str] = None
    attempt: Optional[int] = None
    requested_at: Optional[float] = None
    reserved_bytes: Dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """One launch on disk. `earlier`: of a boot before this one, so nothing of it can live."""

    directory: str
    record: Record
    status: Optional[Status]
    closed: bool
    earlier: bool = False

    @property
    def identity(self) -> Identity:
        status = self.status
        return Identity(
            launch_id=self.record.launch_id,
            leader_pid=status.pid if status else None,
            leader_start=status.start_time if status else None,
            sid=status.sid if status else None,
            closed=self.closed or self.earlier,
        )


@dataclass(frozen=True)
class Standing:
    """A launch together with its live processes."""

    launch: Launch
    processes: Tuple[Process, ...]
    leader: Optional[Process]
    supervised: bool
    state: str  # starting, running, exited, orphaned, unknown
    proofs: Tuple[str, ...] = ()  # one for each of `processes`, see ownership.proof_of
    # Of an orphaned launch: what looks like it and is not proven to be of it, with why.
    spared: Tuple[Tuple[Process, str], ...] = ()

    @property
    def live(self) -> bool:
        return bool(self.processes) or self.state in ("starting", "running")


def write_record(directory: str, record: Record) -> None:
    write_json(os.path.join(directory, REQUEST_NAME), asdict(record))


def read_launch(root: StateRoot, launch_id: str) -> Optional[Launch]:
    """The launch of this boot, else of an earlier one, else None."""
    directory = root.launch_directory(launch_id)
    if os.path.isdir(directory):
        return _read_directory(directory, earlier=False)
    before = root.earlier_directory(launch_id)
    return _read_directory(before, earlier=True) if before else None


def require_launch(root: StateRoot, launch_id: str) -> Launch:
    found = read_launch(root, launch_id)
    if found is None:
        raise Refusal(
            "LAUNCH_UNKNOWN",
            f"No launch {launch_id} was ever started on this host.",
            "Look at the launches that 'observe' names; the state root may have been changed.",
            {"launch_id": launch_id},
        )
    return found


def require_own_launch(root: StateRoot, launch_id: str, controller: str) -> Launch:
    """The launch, if this controller started it: others are shown, never touched."""
    found = require_launch(root, launch_id)
    if found.record.controller != controller:
        raise Refusal(
            "NOT_OURS",
            f"Launch {launch_id} belongs to controller {found.record.controller}.",
            "Stop it where it was started.",
            {"launch_id": launch_id, "controller": found.record.controller},
        )
    return found


def read_launches(root: StateRoot) -> List[Launch]:
    """All launches of this boot, of every controller."""
    found = (_read_directory(root.launch_directory(name), earlier=False) for name in root.launch_ids())
    return [launch for launch in found if launch is not None]


def _read_directory(directory: str, *, earlier: bool) -> Optional[Launch]:
    content = read_json(os.path.join(directory, REQUEST_NAME))
    if content is None:
        return None
    known = {field.name for field in fields(Record)}
    try:
        record = Record(**{name: value for name, value in content.items() if name in known})
    except TypeError:
        return None
    record = replace(record, devices=tuple(record.devices))
    closed = os.path.exists(os.path.join(directory, CLOSED_NAME))
    return Launch(directory, record, read_status(directory), closed, earlier)


def judge(launch: Launch, processes: Sequence[Process], *, uid: int) -> Standing:
    """What a launch is doing, from its files and one reading of the process table."""
    owned = owned_processes(launch.identity, processes, uid=uid)
    leader = find_leader(launch.identity, owned)
    supervised = not launch.earlier and _is_supervised(launch, processes)
    state = state_of(launch.status, earlier=launch.earlier, leader=leader, owned=owned, supervised=supervised)
    proofs = (proof_of(launch.identity, process, processes, uid=uid) or "" for process in owned)
    spared = find_spared(launch.identity, processes, uid=uid) if state == "orphaned" else ()
    return Standing(launch, tuple(owned), leader, supervised, state, tuple(proofs), tuple(spared))


def _is_supervised(launch: Launch, processes: Sequence[Process]) -> bool:
    """Whether a supervisor still will write something. The lock is the proof on a real host."""
    if launch.status is not None and launch.status.state == "exited":
        return False
    if is_locked(os.path.join(launch.directory, SUPERVISOR_LOCK)):
        return True
    pid = launch.status.supervisor_pid if launch.status else None
    title = f" supervise {launch.record.launch_id}"
    return any(process.pid == pid and not process.gone and title in process.title for process in processes)


def state_of(
    status: Optional[Status],
    *,
    earlier: bool,
    leader: Optional[Process],
    owned: Sequence[Process],
    supervised: bool,
) -> str:
    """Pure: the word for a launch.

    While the supervisor lives, a leader that has just gone is still `running`: its exit code is about to be
    written.
    """
    if leader is not None:
        return "running"
    if owned:
        return "orphaned"
    if earlier or (status is not None and status.state == "exited"):
        return "exited"
    if supervised:
        return "running" if status is not None and status.state == "running" else "starting"
    if status is not None and status.state == "running":
        return "exited"
    return "unknown"


def is_closed(launch: Launch) -> bool:
    return os.path.exists(os.path.join(launch.directory, CLOSED_NAME))


def close_launch(launch: Launch, *, reason: str, at: float) -> None:
    """Nothing can be of this launch any more: its session id may be given to others.

    Removes its temporary directory.
    """
    if not is_closed(launch):
        write_json(os.path.join(launch.directory, CLOSED_NAME), {"reason": reason, "at": at})
    shutil.rmtree(launch.record.temp_directory, ignore_errors=True)


def close_where_ended(standing: Standing, *, controller: str, now: float) -> Standing:
    """Close a launch that ended by itself with nothing left.

    A session id that is free again proves nothing.
    """
    launch = standing.launch
    if standing.state != "exited" or launch.closed or launch.earlier or launch.record.controller != controller:
        return standing
    close_launch(launch, reason="ended", at=now)
    return replace(standing, launch=replace(launch, closed=True))


def judge_one(system: System, root: StateRoot, launch_id: str) -> Standing:
    """A launch with a fresh reading of the process table. Refuses with LAUNCH_UNKNOWN.

    The table is read before the files: a status that says `exited` is then never older than the processes.
    """
    processes = system.processes()
    return judge(require_launch(root, launch_id), processes, uid=system.uid)


def describe_exit(status: Optional[Status]) -> Dict[str, Any]:
    return {
        "exit_code": status.exit_code if status else None,
        "exit_signal": status.exit_signal if status else None,
    }
