"""Simulated accelerators: a ledger of bytes per process, and what NVML would say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hosts.agent.system import DeviceUse

MIB = 1024**2
GIB = 1024**3


class OutOfDeviceMemoryError(Exception):
    """An allocation that does not fit. `wanted` and `free` in bytes."""

    def __init__(self, *, wanted: int, free: int) -> None:
        super().__init__(f"wanted {wanted} bytes, {free} free")
        self.wanted = wanted
        self.free = free


@dataclass(frozen=True)
class GpuModel:
    """A kind of card. Totals as NVML and nvidia-smi report them (MiB from NVIDIA's own tables)."""

    name: str
    memory_total: int
    memory_reserved: int
    power_limit_w: float
    idle_power_w: float
    compute_capability: str


# H200: measured (NVML v1 total 150,754,820,096, 616 MiB reserved). The others: totals printed by nvidia-smi.
GPU_MODELS = {
    "L4": GpuModel("NVIDIA L4", 23034 * MIB, 474 * MIB, 72.0, 16.5, "8.9"),
    "RTX4090": GpuModel("NVIDIA GeForce RTX 4090", 24564 * MIB, 382 * MIB, 450.0, 21.0, "8.9"),
    "H200": GpuModel("NVIDIA H200", 150_754_820_096, 616 * MIB, 700.0, 76.0, "9.0"),
}


@dataclass
class Gpu:
    """One card of a simulated host. Guarded by the machine's lock."""

    uuid: str
    index: int
    model: GpuModel
    held: dict[int, int] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)  # pids that compute now

    @property
    def usable(self) -> int:
        """What cudaMemGetInfo calls the total: NVML's without the reserved part."""
        return self.model.memory_total - self.model.memory_reserved

    @property
    def used(self) -> int:
        return sum(self.held.values())

    @property
    def free(self) -> int:
        return self.usable - self.used

    def allocate(self, *, pid: int, size: int) -> None:
        """Add `size` bytes to what `pid` holds; OutOfDeviceMemoryError where they are not free."""
        if size > self.free:
            raise OutOfDeviceMemoryError(wanted=size, free=self.free)
        self.held[pid] = self.held.get(pid, 0) + size

    def release(self, pid: int) -> None:
        self.held.pop(pid, None)
        self.busy.discard(pid)

    def read_use(self) -> DeviceUse:
        load = 0 if not self.busy else min(100, 35 + 15 * len(self.busy))
        power = self.model.idle_power_w + (self.model.power_limit_w - self.model.idle_power_w) * load / 100
        return DeviceUse(
            uuid=self.uuid,
            total=self.model.memory_total,
            used=self.used,
            free=self.free,
            utilization=load,
            power_w=round(power, 1),
            temperature_c=36 + load // 4,
            processes=tuple(sorted(self.held.items())),
        )

    def describe(self) -> dict[str, Any]:
        """Give the record of the agent's `gpus.devices` (docs/agent-protocol.md)."""
        return {
            "uuid": self.uuid,
            "index": self.index,
            "name": self.model.name,
            "memory_total": self.model.memory_total,
            "memory_used": self.used,
            "memory_reserved": self.model.memory_reserved,
            "mig": None,
            "pci_bus_id": f"00000000:{0x17 + self.index * 0x11:02X}:00.0",
            "power_limit_w": self.model.power_limit_w,
            "compute_capability": self.model.compute_capability,
        }
