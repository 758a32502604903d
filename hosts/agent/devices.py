"""Accelerators: by NVML where libnvidia-ml loads, else by nvidia-smi's CSV, else none.

No data is None, never 0.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import nvml
from .system import DeviceUse

MIB = 1 << 20
TIMEOUT_S = 20.0  # a wedged driver blocks nvidia-smi for good
OUTPUT_LIMIT = 100_000
FACT_FIELDS = (
    "uuid",
    "index",
    "name",
    "memory.total",
    "memory.used",
    "memory.reserved",
    "mig.mode.current",
    "pci.bus_id",
    "power.limit",
    "compute_cap",
    "driver_version",
)
USE_FIELDS = (
    "uuid",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "power.draw",
    "temperature.gpu",
)


def read_facts() -> Dict[str, Any]:
    """The `gpus` part of the facts, see docs/agent-protocol.md."""
    try:
        return nvml.read_facts()
    except nvml.NvmlUnavailable as error:
        reason = str(error)
    output, failure = run_smi("gpu", FACT_FIELDS)
    if output is not None:
        return {"source": "nvidia-smi", "csv": output, "fields": list(FACT_FIELDS)}
    return {"source": "none", "reason": f"NVML: {reason}; nvidia-smi: {failure}"}


def read_use() -> List[DeviceUse]:
    """All devices now; an empty list on a host without."""
    try:
        return nvml.read_use()
    except nvml.NvmlUnavailable:
        pass
    cards, _failure = run_smi("gpu", USE_FIELDS)
    if cards is None:
        return []
    processes, _failure = run_smi("compute-apps", ("gpu_uuid", "pid", "used_memory"))
    return parse_use(cards, processes or "")


def run_smi(kind: str, fields: Sequence[str]) -> Tuple[Optional[str], Optional[str]]:
    """(CSV without header and units, None) or (None, the reason)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, "not installed"
    command = [program, f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)[:300]
    output = done.stdout[:OUTPUT_LIMIT].decode("utf-8", "replace").replace("\0", "\ufffd")
    if done.returncode != 0:
        return None, f"exit code {done.returncode}: {output.strip()[:300]}"
    return output, None


def parse_use(cards: str, processes: str) -> List[DeviceUse]:
    """DeviceUse from nvidia-smi's CSV; its sizes are MiB."""
    holders: Dict[str, List[Tuple[int, Optional[int]]]] = {}
    for row in _rows(processes, 3):
        if row[1].isdigit():
            holders.setdefault(row[0], []).append((int(row[1]), _bytes(row[2])))
    return [
        DeviceUse(
            uuid=row[0],
            total=_bytes(row[1]),
            used=_bytes(row[2]),
            free=_bytes(row[3]),
            utilization=_integer(row[4]),
            power_w=_float(row[5]),
            temperature_c=_integer(row[6]),
            processes=tuple(sorted(holders.get(row[0], []), key=lambda item: item[0])),
        )
        for row in _rows(cards, len(USE_FIELDS))
    ]


def _rows(text: str, width: int) -> List[List[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def _float(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


def _integer(text: str) -> Optional[int]:
    number = _float(text)
    return None if number is None else int(number)


def _bytes(text: str) -> Optional[int]:
    number = _integer(text)
    return None if number is None else number * MIB
