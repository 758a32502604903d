# ruff: noqa: N802, N815 - the names are those of pynvml
"""A library of two cards, the second cut up by MIG into two instances. Written after NVML's manual.

`python3 -m tests.agent.synthetic_nvml` writes the recording of it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rig.nvml_recording import NvmlRecorder, in_place_of_pynvml, read_devices

ORIGIN = "synthetic: two cards, the second with two MIG instances; no machine's"
GIB = 1 << 30
NOT_SUPPORTED, NOT_FOUND = 3, 6


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({NOT_SUPPORTED: "Not Supported", NOT_FOUND: "Not Found"}[value])
        self.value = value


class Handle:
    """Opaque, as pynvml's pointers are. `instance` is None for a card."""

    def __init__(self, card: int, instance: int | None = None) -> None:
        self.card = card
        self.instance = instance


class SyntheticNvml:
    NVMLError = NvmlError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 0x02000028

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.00.00"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12_080

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        return Handle(index)

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        if handle.instance is not None:
            raise NvmlError(NOT_SUPPORTED)
        return [handle.card, handle.card]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: Handle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, number: int) -> Handle:
        if number not in (0, 3):  # instances need not lie side by side
            raise NvmlError(NOT_FOUND)
        return Handle(handle.card, number)

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        card = f"{handle.card:08d}-0000-4000-8000-000000000000"
        return f"GPU-{card}" if handle.instance is None else f"MIG-{handle.instance:08d}{card[8:]}"

    def nvmlDeviceGetName(self, handle: Handle) -> bytes:
        return b"Synthetic 80GB" if handle.instance is None else b"Synthetic 80GB MIG 3g.40gb"

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any:
        if version is None:
            raise NvmlError(NOT_SUPPORTED)
        total = 80 * GIB if handle.instance is None else 39 * GIB
        return SimpleNamespace(total=total, used=2 * GIB, free=total - 2 * GIB, reserved=GIB // 2)

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        if handle.card == 1:
            raise NvmlError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        if handle.instance is not None:
            raise NvmlError(NOT_SUPPORTED)
        return 350_500

    def nvmlDeviceGetTemperature(self, _handle: Handle, _sensor: int) -> int:
        return 61

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        if handle.instance == 3:
            return []
        memory = 2 * GIB if handle.card == 0 else None  # not given for MIG to an unprivileged user
        return [SimpleNamespace(pid=4242 + handle.card, usedGpuMemory=memory, gpuInstanceId=0xFFFFFFFF)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[Any]:
        if handle.card == 1:
            raise NvmlError(NOT_SUPPORTED)
        return [SimpleNamespace(pid=900, usedGpuMemory=4 << 20, gpuInstanceId=0xFFFFFFFF)]

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x17 + handle.card:02X}:00.0".encode())

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: Handle) -> int:
        return 400_000

    def nvmlDeviceGetCudaComputeCapability(self, _handle: Handle) -> tuple[int, int]:
        return 8, 0


def write_samples(folder: Path) -> None:
    recorder = NvmlRecorder(SyntheticNvml(), origin=ORIGIN)
    with in_place_of_pynvml(recorder):
        found = read_devices()
    for name, body in (("nvml-synthetic", recorder.to_json()), ("nvml-synthetic.facts", found)):
        (folder / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write_samples(Path(__file__).with_name("samples"))
