"""What is known about a host at one moment, as values.

Sizes are bytes, powers watts, times aware datetimes. A reading that could not be taken is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

DeviceKind = Literal["gpu", "mig", "cpu"]
GpuSource = Literal["nvml", "nvidia-smi", "none"]
CPU_DEVICE = "cpu"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A thing that holds a model: a GPU, a MIG slice of one, or the host's own memory (uuid "cpu")."""

    uuid: str
    kind: DeviceKind
    index: int | None
    name: str
    memory_total: int | None
    memory_used: int | None
    memory_reserved: int | None = None
    mig_enabled: bool | None = None
    parent: str | None = None
    pci_bus_id: str | None = None
    power_limit_w: float | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilization: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, kw_only=True)
class Disk:
    path: str
    total: int | None
    free: int | None
    filesystem: str | None


@dataclass(frozen=True, kw_only=True)
class VllmInstallation:
    """A vLLM found on the host.

    `executable` is the `vllm` command; None where only the Python package is there.
    """

    python: str
    executable: str | None
    version: str | None
    kind: str
    torch: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelDirectory:
    """A directory with a config.json or weights. Exactly one of `config` and `config_error` is set.

    `unreadable` says why a file of it cannot be opened by the SSH user; None where all can, or nobody looked.
    """

    path: str
    config: Mapping[str, Any] | None
    config_error: str | None
    weight_bytes: int | None
    weight_files: int | None
    dtype_bytes: int | None = None
    unreadable: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionPolicy:
    """logind's rules that can kill what outlives the SSH session. None where there is no logind to ask."""

    kill_user_processes: bool | None = None
    linger: bool | None = None
    remove_ipc: bool | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One answer of the agent's `facts`.

    `taken_at` is the host's own clock; its age is judged by the caller's.
    """

    machine_id: str
    boot_id: str
    hostname: str
    taken_at: datetime | None
    utc_offset_s: int | None
    kernel: str | None
    os: str | None
    python: str | None
    uid: int | None
    user: str | None
    cpu_count: int | None
    cpu_model: str | None
    memory_total: int | None
    memory_available: int | None
    shm_total: int | None
    shm_free: int | None
    disks: tuple[Disk, ...]
    devices: tuple[Device, ...]
    gpu_source: GpuSource
    gpu_reason: str | None
    driver: str | None
    cuda: str | None
    vllm: tuple[VllmInstallation, ...]
    models: tuple[ModelDirectory, ...]
    session: SessionPolicy
    # Where the agent keeps its files on the host.
    state_root: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FactsProblem:
    """Why an answer of `facts` cannot be used. `field` is the path of the part that is wrong."""

    code: Literal["FACTS_UNREADABLE", "FACTS_INCOMPLETE"]
    field: str
    message: str
    next_step: str
