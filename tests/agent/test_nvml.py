# ruff: noqa: N802, N815 - the library's own names
"""nvml.py against a library that answers as recorded.

The answers are those of an H200 under driver 580.159.04; and those of the same card cut up by MIG (shaped
after NVML's manual, not recorded).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hosts.agent import devices, nvml

H200 = "GPU-859f7915-e005-88eb-7360-96ca89189b60"
SMI_ROW = f"{H200}, 0, NVIDIA H200, 143771, 0, 616, Disabled, 00000000:00:06.0, 700.00, 9.0, 580.159.04"
SLICES = ["MIG-0aa53a3e-33bd-5b6c-a1a5-d3a6c1b4b2a1", "MIG-1bb64b4f-44ce-5c7d-b2b6-e4b7d2c5c3b2"]


class NvmlError(Exception):
    pass


class Library:
    """The part of pynvml that is asked, for one card. Handles are the UUIDs."""

    NVMLError = NvmlError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *, mig: bool = False, old: bool = False) -> None:
        self.mig, self.old = mig, old

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, _index: int) -> str:
        return H200

    def nvmlDeviceGetMigMode(self, _handle: str) -> list[int]:
        if self.old:
            raise NvmlError("Not Supported")
        return [int(self.mig), int(self.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: str, number: int) -> str:
        if number >= len(SLICES):
            raise NvmlError("Not Found")
        return SLICES[number]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200" if handle == H200 else b"NVIDIA H200 MIG 1g.18gb"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if version is None:
            return SimpleNamespace(total=150_754_820_096, used=644_939_776, free=150_109_880_320)
        if self.old:
            raise NvmlError("Function Not Found")
        if handle != H200:
            return SimpleNamespace(total=17 << 30, used=1 << 30, free=16 << 30, reserved=0)
        return SimpleNamespace(total=150_754_820_096, used=0, free=150_109_880_320, reserved=644_939_776)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle != H200:
            raise NvmlError("Not Supported")
        return SimpleNamespace(gpu=0, memory=0)

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:
        return 83_776

    def nvmlDeviceGetTemperature(self, _handle: str, _sensor: int) -> int:
        return 35

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        memory = None if self.old else 2_690_646_016
        return [SimpleNamespace(pid=433, usedGpuMemory=memory)] if handle != SLICES[1] else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, _handle: str) -> list[Any]:
        return []

    def nvmlDeviceGetPciInfo(self, _handle: str) -> Any:
        return SimpleNamespace(busId=b"00000000:00:06.0")

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: str) -> int:
        return 700_000

    def nvmlDeviceGetCudaComputeCapability(self, _handle: str) -> tuple[int, int]:
        return 9, 0

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13_000


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a library in the place of NVIDIA's."""

    def put(library: Library | None) -> None:
        monkeypatch.setattr(nvml, "pynvml", library)
        monkeypatch.setattr(nvml, "_STATE", {})

    return put


class TestNvml:
    def test_reads_an_h200_as_recorded(self, install: Any) -> None:
        install(Library())
        assert devices.read_facts() == {
            "source": "nvml",
            "driver": "580.159.04",
            "cuda": "13.0",
            "devices": [
                {
                    "uuid": H200,
                    "index": 0,
                    "name": "NVIDIA H200",
                    "memory_total": 150_754_820_096,
                    "memory_used": 0,
                    "memory_reserved": 644_939_776,
                    "mig": "disabled",
                    "parent": None,
                    "pci_bus_id": "00000000:00:06.0",
                    "power_limit_w": 700.0,
                    "compute_capability": "9.0",
                }
            ],
        }
        (use,) = devices.read_use()
        assert (use.used, use.free, use.power_w, use.temperature_c) == (0, 150_109_880_320, 83.776, 35)
        assert use.processes == ((433, 2_690_646_016),)

    def test_has_a_device_for_every_mig_instance(self, install: Any) -> None:
        install(Library(mig=True))
        found = devices.read_facts()["devices"]
        assert [(entry["uuid"], entry["mig"], entry["parent"]) for entry in found] == [
            (H200, "enabled", None),
            (SLICES[0], "instance", H200),
            (SLICES[1], "instance", H200),
        ]
        assert found[1]["memory_total"] == 17 << 30
        first, second = devices.read_use()
        assert (first.uuid, first.utilization, len(first.processes)) == (SLICES[0], None, 1)
        assert (second.uuid, second.processes) == (SLICES[1], ())

    def test_says_none_where_an_old_driver_gives_no_reading(self, install: Any) -> None:
        install(Library(old=True))
        (entry,) = devices.read_facts()["devices"]
        assert (entry["memory_reserved"], entry["memory_used"]) == (None, 644_939_776)
        assert entry["mig"] is None
        assert devices.read_use()[0].processes == ((433, None),)

    def test_gives_the_reason_where_there_is_no_library(
        self, install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        class Missing(Library):
            def nvmlInit(self) -> None:
                raise NvmlError("NVML Shared Library Not Found")

        install(Missing())
        monkeypatch.setenv("PATH", str(tmp_path))
        assert devices.read_use() == []
        assert devices.read_facts() == {
            "source": "none",
            "reason": "NVML: NVML Shared Library Not Found; nvidia-smi: not installed",
        }

    def test_is_replaced_by_nvidia_smi_where_that_runs(
        self, install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        install(None)
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{SMI_ROW}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        found = devices.read_facts()
        assert (found["source"], len(found["csv"].split(","))) == ("nvidia-smi", len(found["fields"]))
        program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: version mismatch'\nexit 18\n")
        assert "version mismatch" in devices.read_facts()["reason"]
