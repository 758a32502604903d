"""facts: what the host is and has."""

from __future__ import annotations

import os
import platform
import time
from typing import Any, Dict, List, Optional

from .arguments import read_texts
from .call import Call
from .models import find_models
from .observe import utc_text
from .refusal import Refusal
from .state_root import default_path
from .system import System


def utc_offset(now: float) -> Optional[int]:
    """Seconds that local time is ahead of UTC."""
    return time.localtime(now).tm_gmtoff


def describe_disk(system: System, path: str) -> Optional[Dict[str, Any]]:
    """Figures of the file system that holds path, or of its nearest existing parent.

    None where it does not say.
    """
    existing = path
    while not os.path.exists(existing) and existing != "/":
        existing = os.path.dirname(existing)
    try:
        kind, total, free = system.filesystem(existing)
    except OSError:
        return None
    return {"path": path, "total": total, "free": free, "filesystem": kind}


def facts(call: Call) -> Dict[str, Any]:
    system, options = call.system, call.options
    model_roots = read_texts(call.args, "model_roots")
    vllm_roots = read_texts(call.args, "vllm_roots")
    now = system.now()
    release = system.os_release()
    total, available = system.memory()
    state_root = options.state_root or default_path(system.home)
    paths: List[str] = [state_root, options.log_root or state_root, options.temp_root, *model_roots[:20]]
    disks = [describe_disk(system, path) for path in dict.fromkeys(paths)]
    shm = describe_disk(system, "/dev/shm")  # noqa: S108 - the kernel's directory
    return {
        "machine_id": system.machine_id(),
        "boot_id": system.boot_id(),
        "hostname": system.hostname(),
        "kernel": release.get("kernel"),
        "os": release.get("os"),
        "clock": utc_text(now),
        "utc_offset_s": utc_offset(now),
        "uid": system.uid,
        "user": system.user,
        "python": platform.python_version(),
        "cpu": system.cpu(),
        "memory": {"total": total, "available": available},
        "disks": [disk for disk in disks if disk is not None],
        "gpus": system.gpu_facts(),
        "vllm": system.vllm_installations(vllm_roots),
        "models": find_models(model_roots),
        "session": system.session_policy(),
        "shm": {"total": shm["total"], "free": shm["free"]} if shm else {"total": None, "free": None},
        "state_root": {"path": state_root, "refusal": _try_state_root(call)},
    }


def _try_state_root(call: Call) -> Optional[Dict[str, Any]]:
    """Why nothing could be launched here, told with the facts instead of at the first start.

    None where all is well.
    """
    try:
        call.open_root()
    except Refusal as refusal:
        return refusal.body()
    return None
