"""NVIDIA's management library through pynvml.

MIG instances are devices of their own: vLLM sees them by their UUID.
A reading that a driver does not give is None. `used` is what processes hold: the v2 call keeps the driver's
own reservation apart (H200, driver 580: the v1 call counts 644,939,776 bytes as used on an idle card).
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .system import DeviceUse

try:
    import pynvml
except ImportError:  # the module travels in the archive; in a bare source tree it may be missing
    pynvml = None

_LOCK = threading.Lock()
_STATE: Dict[str, Optional[str]] = {}


class NvmlUnavailable(Exception):
    """Why NVML cannot be asked here."""


def ensure_loaded() -> None:
    """Load the library once per process; raises NvmlUnavailable with the reason."""
    with _LOCK:
        if "error" not in _STATE:
            _STATE["error"] = _load()
    if _STATE["error"] is not None:
        raise NvmlUnavailable(_STATE["error"])


def _load() -> Optional[str]:
    if pynvml is None:
        return "pynvml is missing"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    return None


def ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, None where this card or driver does not give it."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, AttributeError, TypeError):
        return None


def as_text(value: Any) -> Optional[str]:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def each_device() -> Iterator[Tuple[Any, int, str, Any]]:
    """(handle, index, kind, parent handle). kind: gpu (no MIG), parent (cut up by MIG), instance."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            continue
        mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
        cut = bool(mode) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        yield handle, index, "parent" if cut else "gpu", None
        for number in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0) if cut else ():
            instance = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                yield instance, index, "instance", handle


def read_memory(handle: Any) -> Dict[str, Optional[int]]:
    found = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if found is not None:
        return {"total": found.total, "used": found.used, "free": found.free, "reserved": found.reserved}
    found = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if found is not None:
        return {"total": found.total, "used": found.used, "free": found.free, "reserved": None}
    return {"total": None, "used": None, "free": None, "reserved": None}


def read_processes(handle: Any) -> Tuple[Tuple[int, Optional[int]], ...]:
    """(pid, used bytes) of compute and graphics processes.

    In a container the driver may name pids of the host.
    """
    used: Dict[int, Optional[int]] = {}
    for call in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in ask(call, handle) or ():
            used[process.pid] = process.usedGpuMemory if process.usedGpuMemory is not None else used.get(process.pid)
    return tuple(sorted(used.items()))


def read_use() -> List[DeviceUse]:
    """Every device a launch could be placed on. Raises NvmlUnavailable."""
    ensure_loaded()
    return [_use_of(handle, parent) for handle, _index, kind, parent in each_device() if kind != "parent"]


def _use_of(handle: Any, parent: Any) -> DeviceUse:
    card = handle if parent is None else parent
    memory = read_memory(handle)
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)  # not given for MIG instances
    power = ask(pynvml.nvmlDeviceGetPowerUsage, card)
    return DeviceUse(
        uuid=as_text(ask(pynvml.nvmlDeviceGetUUID, handle)) or "unknown",
        total=memory["total"],
        used=memory["used"],
        free=memory["free"],
        utilization=None if rates is None else rates.gpu,
        power_w=None if power is None else power / 1000,
        temperature_c=ask(pynvml.nvmlDeviceGetTemperature, card, pynvml.NVML_TEMPERATURE_GPU),
        processes=read_processes(handle),
    )


def read_facts() -> Dict[str, Any]:
    """The `gpus` fact. Raises NvmlUnavailable."""
    ensure_loaded()
    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "source": "nvml",
        "driver": as_text(ask(pynvml.nvmlSystemGetDriverVersion)),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "devices": [_facts_of(*device) for device in each_device()],
    }


def _facts_of(handle: Any, index: int, kind: str, parent: Any) -> Dict[str, Any]:
    card = handle if parent is None else parent
    memory = read_memory(handle)
    bus = ask(pynvml.nvmlDeviceGetPciInfo, card)
    limit = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, card)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, card)
    return {
        "uuid": as_text(ask(pynvml.nvmlDeviceGetUUID, handle)),
        "index": index,
        "name": as_text(ask(pynvml.nvmlDeviceGetName, handle)),
        "memory_total": memory["total"],
        "memory_used": memory["used"],
        "memory_reserved": memory["reserved"],
        "mig": _mig_of(handle, kind),
        "parent": None if parent is None else as_text(ask(pynvml.nvmlDeviceGetUUID, parent)),
        "pci_bus_id": None if bus is None else as_text(bus.busId),
        "power_limit_w": None if limit is None else limit / 1000,
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
    }


def _mig_of(handle: Any, kind: str) -> Optional[str]:
    """The MIG mode of a card (None: it has no such thing), `instance` for a part of one."""
    if kind == "gpu":
        return None if ask(pynvml.nvmlDeviceGetMigMode, handle) is None else "disabled"
    return {"parent": "enabled"}.get(kind, kind)
