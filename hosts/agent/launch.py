"""launch: start one process tree, once, whatever happens to the channel or to this agent in the middle."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional

from .arguments import read_environment, read_integer, read_name, read_text, read_texts
from .call import Call
from .launches import (
    Record,
    Standing,
    describe_exit,
    judge,
    judge_one,
    read_launch,
    read_launches,
    write_record,
)
from .locks import hold_lock
from .model_files import find_unreadable
from .refusal import Refusal, bad_request
from .reservations import lock_path, read_reserved, refuse_where_promised
from .slots import Slot, fenced_slot
from .state_root import StateRoot, make_private, make_temporary
from .system import StartRequest

PASSED_THROUGH = ("PATH", "HOME", "LANG", "USER", "LD_LIBRARY_PATH")
NEVER_PASSED = ("VLLM_PORT",)  # it would move vLLM's internal ports below the planned one


@dataclass(frozen=True)
class Wanted:
    """The arguments of the verb, read and checked for type only."""

    launch_id: str
    instance: str
    slot: str
    argv: List[str]
    env: Dict[str, str]
    secret_env: Dict[str, str]
    cwd: Optional[str]
    address: str
    port: Optional[int]
    devices: List[str]
    model_path: Optional[str]
    min_free_disk: int
    model_roots: List[str]
    vllm_roots: List[str]
    reserved_bytes: Dict[str, int]


def read_wanted(call: Call) -> Wanted:
    args = call.args
    argv = read_texts(args, "argv", optional=False)
    if not argv or not argv[0]:
        raise bad_request("'argv' must name a program.", field="argv")
    return Wanted(
        launch_id=read_name(args, "launch_id"),
        instance=read_name(args, "instance"),
        slot=read_name(args, "slot"),
        argv=argv,
        env=read_environment(args, "env"),
        secret_env=read_environment(args, "secret_env"),
        cwd=read_text(args, "cwd", None),
        address=read_text(args, "address", "127.0.0.1"),
        port=read_integer(args, "port", default=None, low=1, high=65535),
        devices=read_texts(args, "devices"),
        model_path=read_text(args, "model_path", None),
        min_free_disk=read_integer(args, "min_free_disk", default=0),
        model_roots=read_texts(args, "model_roots"),
        vllm_roots=read_texts(args, "vllm_roots"),
        reserved_bytes=read_reserved(args),
    )


def launch(call: Call) -> Dict[str, Any]:
    """LaunchStarted; the one that runs where the id was asked for before."""
    wanted, fence = read_wanted(call), call.read_fence()
    root = call.open_root()
    with fenced_slot(call, root, wanted.slot, fence) as slot:
        known = _adopt(call, root, wanted)
        if known is not None:
            return _started(root, known, adopted=True)
        _refuse_where_busy(call, root, wanted)
        wanted = replace(wanted, argv=[_find_executable(wanted), *wanted.argv[1:]])
        _refuse_where_host_unfit(call, root, wanted)
        with hold_lock(lock_path(root), sleep=call.sleep):
            refuse_where_promised(call.system, root, launch_id=wanted.launch_id, wanted=wanted.reserved_bytes)
            _start(call, root, wanted, slot)
    standing = judge_one(call.system, root, wanted.launch_id)
    status = standing.launch.status
    if status is not None and status.error is not None:
        raise Refusal(
            "START_FAILED",
            f"The process could not be started: {status.error}.",
            "Correct the command line and start again under a new launch id.",
            {"launch_id": wanted.launch_id, "error": status.error},
        )
    return _started(root, standing, adopted=False)


def _adopt(call: Call, root: StateRoot, wanted: Wanted) -> Optional[Standing]:
    """The running launch of this id. None: never started, or an agent died before its supervisor began."""
    found = read_launch(root, wanted.launch_id)
    if found is None:
        return None
    if (found.record.controller, found.record.slot) != (call.options.controller, wanted.slot):
        raise Refusal(
            "LAUNCH_ID_TAKEN",
            f"Launch {wanted.launch_id} was started in another slot or by another controller.",
            "Use a new launch id for every start.",
            {"slot": found.record.slot, "controller": found.record.controller},
        )
    standing = judge_one(call.system, root, wanted.launch_id)
    if standing.launch.closed or standing.state in ("exited", "orphaned"):
        raise Refusal(
            "LAUNCH_CLOSED",
            f"Launch {wanted.launch_id} already ran and ended.",
            "Sweep what is left of it; start again under a new launch id.",
            {"launch_id": wanted.launch_id, "state": standing.state, **describe_exit(standing.launch.status)},
        )
    return standing if standing.live else None


def _started(root: StateRoot, standing: Standing, *, adopted: bool) -> Dict[str, Any]:
    identity, leader = standing.launch.identity, standing.leader
    return {
        "launch_id": identity.launch_id,
        "pid": leader.pid if leader else identity.leader_pid,
        "start_time": leader.start_time if leader else identity.leader_start,
        "sid": leader.sid if leader else identity.sid,
        "boot_id": root.boot_id,
        "log_path": standing.launch.record.log_path,
        "adopted": adopted,
        "state": standing.state,
    }


def _refuse_where_busy(call: Call, root: StateRoot, wanted: Wanted) -> None:
    """One live launch per slot of a controller, one live launch per port of the host."""
    processes = call.system.processes()
    for other in read_launches(root):
        record = other.record
        if record.launch_id == wanted.launch_id:
            continue
        same_slot = (record.slot, record.controller) == (wanted.slot, call.options.controller)
        same_port = wanted.port is not None and record.port == wanted.port
        if not (same_slot or same_port) or not judge(other, processes, uid=call.system.uid).live:
            continue
        pids = [process.pid for process in judge(other, processes, uid=call.system.uid).processes]
        if same_slot:
            raise Refusal(
                "SLOT_BUSY",
                f"Slot {wanted.slot} is held by launch {record.launch_id}.",
                "Stop that launch, or sweep it if only orphans are left.",
                {"launch_id": record.launch_id, "pids": pids},
            )
        raise _port_taken(wanted, f"launch {record.launch_id} has it", pids)


def _port_taken(wanted: Wanted, reason: str, pids: List[int]) -> Refusal:
    return Refusal(
        "PORT_TAKEN",
        f"Port {wanted.port} on {wanted.address} cannot be used: {reason}.",
        "Free the port or plan another one.",
        {"address": wanted.address, "port": wanted.port, "pids": pids},
    )


def _find_executable(wanted: Wanted) -> str:
    """argv[0] as an absolute path; a bare name is looked up in the launch's own PATH."""
    name = wanted.argv[0]
    path = wanted.env.get("PATH") or os.environ.get("PATH") or os.defpath
    found = shutil.which(name, path=path) if "/" not in name else name
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK) or not os.path.isabs(found):
        raise Refusal(
            "EXECUTABLE_MISSING",
            f"There is no program {name} that this user may run.",
            "Choose a vLLM installation that the host's facts name.",
            {"executable": name},
        )
    return found


def _refuse_where_host_unfit(call: Call, root: StateRoot, wanted: Wanted) -> None:
    model = wanted.model_path
    if model is not None and not os.path.exists(model):
        raise Refusal(
            "MODEL_MISSING",
            f"There is no model at {model}.",
            "Choose a model that the facts name.",
            {"path": model},
        )
    _refuse_outside(wanted.model_path, wanted.model_roots, what="model")
    _refuse_unreadable(call, wanted.model_path)
    # The directory is resolved, not the file: in a virtual environment `python3` itself is a link to the outside.
    _refuse_outside(os.path.dirname(wanted.argv[0]), wanted.vllm_roots, what="vLLM")
    if wanted.cwd is not None and not os.path.isdir(wanted.cwd):
        raise Refusal("CWD_MISSING", f"There is no directory {wanted.cwd}.", "Leave cwd out.", {"path": wanted.cwd})
    _refuse_where_disk_full(call, root, wanted)
    policy = call.system.session_policy()
    if policy.get("kill_user_processes") is True:
        # Lingering keeps the user's service manager, not the processes of a session's scope (logind.conf(5)).
        raise Refusal(
            "LOGOUT_KILLS",
            f"systemd-logind ends all processes of {call.system.user} at the end of an SSH session.",
            f"Have root set KillUserProcesses=no, or KillExcludeUsers={call.system.user}, in /etc/systemd/logind.conf.",
            dict(policy),
        )
    if wanted.port is not None:
        reason = call.system.bind_error(wanted.address, wanted.port)
        if reason is not None:
            raise _port_taken(wanted, reason, [])


def _refuse_unreadable(call: Call, model: Optional[str]) -> None:
    reason = None if model is None else find_unreadable(model)
    if reason is not None:
        raise Refusal(
            "MODEL_UNREADABLE",
            f"The model at {model} cannot be used by {call.system.user}: {reason}.",
            f"Let {call.system.user} read every file there (chmod -R a+rX), or copy the model again.",
            {"path": model, "reason": reason},
        )


def _refuse_outside(path: Optional[str], roots: List[str], *, what: str) -> None:
    """Links are followed first: a link below an allowed directory that leads elsewhere is elsewhere."""
    if path is None or not roots:
        return
    real = os.path.realpath(path)
    allowed = [os.path.realpath(root) for root in roots]
    if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in allowed):
        raise Refusal(
            "PATH_OUTSIDE_ROOTS",
            f"The {what} at {path} lies outside the directories an administrator allowed on this host.",
            "Choose one below them, or have an administrator add its directory to the host.",
            {"path": path, "real": real, "roots": roots},
        )


def _refuse_where_disk_full(call: Call, root: StateRoot, wanted: Wanted) -> None:
    for path in dict.fromkeys(
        (root.path, os.path.dirname(root.log_root) if not os.path.isdir(root.log_root) else root.log_root)
    ):
        _kind, _total, free = call.system.filesystem(path)
        if free < wanted.min_free_disk:
            raise Refusal(
                "DISK_FULL",
                f"{free} bytes are free at {path}; {wanted.min_free_disk} are asked for.",
                "Make room there or name another log root.",
                {"path": path, "free": free, "wanted": wanted.min_free_disk},
            )


def _start(call: Call, root: StateRoot, wanted: Wanted, slot: Slot) -> None:
    short = hashlib.sha256(wanted.launch_id.encode("utf-8")).hexdigest()[:12]
    temporary = make_temporary(call.options.temp_root, short)
    environment = build_environment(call, wanted, temporary)
    record = Record(
        launch_id=wanted.launch_id,
        controller=call.options.controller,
        instance=wanted.instance,
        slot=wanted.slot,
        argv=wanted.argv,
        env_names=sorted(environment),
        log_path=root.log_path(wanted.instance, wanted.launch_id),
        temp_directory=temporary,
        cwd=wanted.cwd,
        address=wanted.address,
        port=wanted.port,
        devices=tuple(wanted.devices),
        model_path=wanted.model_path,
        run=slot.fence.run,
        attempt=slot.fence.attempt,
        requested_at=call.system.now(),
        reserved_bytes=wanted.reserved_bytes,
    )
    directory = root.launch_directory(wanted.launch_id)
    make_private(directory, below=root.boot_directory)
    write_record(directory, record)
    slot.occupy(wanted.launch_id)
    make_private(os.path.dirname(record.log_path), below=_existing_part(root))
    call.system.start_detached(
        StartRequest(
            launch_id=wanted.launch_id,
            directory=directory,
            argv=wanted.argv,
            env=environment,
            log_path=record.log_path,
            cwd=wanted.cwd,
        )
    )


def _existing_part(root: StateRoot) -> str:
    return root.log_root if os.path.isdir(root.log_root) else os.path.dirname(root.log_root)


def build_environment(call: Call, wanted: Wanted, temporary: str) -> Dict[str, str]:
    """The complete environment of the process.

    A short list of the host's, the plan's, and ours, which win.
    """
    found = {name: os.environ[name] for name in PASSED_THROUGH if name in os.environ}
    found.update(HOME=call.system.home, USER=call.system.user)
    found.setdefault("PATH", os.defpath)
    found.update(wanted.env)
    found.update(wanted.secret_env)
    for name in NEVER_PASSED:
        found.pop(name, None)
    found.update(
        FLEETADMIN_LAUNCH=wanted.launch_id,
        FLEETADMIN_CONTROLLER=call.options.controller,
        SPT_NOENV="1",
        NO_COLOR="1",
        VLLM_NO_USAGE_STATS="1",
        TMPDIR=temporary,
        VLLM_RPC_BASE_PATH=temporary,
    )
    return found
