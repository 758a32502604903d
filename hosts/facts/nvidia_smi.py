"""Reads what `nvidia-smi` prints: the CSV of `--query-gpu` and the XML of `-q -x`.

Values that the driver cannot give ([N/A], [Not Supported], ERR!, …) become None. nvidia-smi counts memory in
MiB.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from hosts.facts.model import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1024 * 1024
MAX_CSV = 256 * 1024
MAX_XML = 4 * 1024 * 1024
MAX_DEVICES = 512
_ABSENT = re.compile(
    r"\[?(?:n/a|not supported|unknown error|gpu is lost|insufficient permissions|no data"
    r"|requested functionality .*|err!|none|)\]?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?", re.ASCII)
# A DOCTYPE may name a file (nvidia-smi's does; it is never fetched) but must not define entities of its own.
_INTERNAL_SUBSET = re.compile(r"<!ENTITY|<!DOCTYPE[^>\[]*\[", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class SmiReading:
    """Devices that could be read, and one sentence for each thing that could not."""

    devices: tuple[Device, ...]
    driver: str | None = None
    cuda: str | None = None
    problems: tuple[str, ...] = ()


def read_value(text: str | None) -> str | None:
    """Return the text of one field, None where nvidia-smi had nothing to say."""
    value = (text or "").strip()
    return None if _ABSENT.fullmatch(value) else value


def parse_query_csv(*, text: str, fields: Sequence[str]) -> SmiReading:
    """Parse `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits`.

    `fields` are the names that were asked for.
    """
    if len(text) > MAX_CSV:
        return SmiReading(devices=(), problems=("nvidia-smi answered more than 256 KiB, which was not read.",))
    devices: list[Device] = []
    problems: list[str] = []
    driver: str | None = None
    for number, row in enumerate(csv.reader(io.StringIO(text.replace("\0", "")), skipinitialspace=True), start=1):
        if not any(cell.strip() for cell in row):
            continue
        values = dict(zip(fields, map(read_value, row), strict=False))
        uuid = values.get("uuid")
        if len(row) != len(fields) or uuid is None or len(devices) >= MAX_DEVICES:
            problems.append(f"Line {number} of nvidia-smi's answer is not a GPU: {', '.join(row)[:160]!r}.")
            continue
        driver = driver or values.get("driver_version")
        devices.append(_device_from_row(uuid=uuid, values=values))
    return SmiReading(devices=tuple(devices), driver=driver, problems=tuple(problems))


def _device_from_row(*, uuid: str, values: dict[str, str | None]) -> Device:
    mode = values.get("mig.mode.current")
    return Device(
        uuid=uuid,
        kind="mig" if uuid.startswith("MIG-") else "gpu",
        index=_whole(values.get("index")),
        name=values.get("name") or "unknown",
        memory_total=_mebibytes(values.get("memory.total")),
        memory_used=_mebibytes(values.get("memory.used")),
        memory_reserved=_mebibytes(values.get("memory.reserved")),
        mig_enabled=None if mode is None else mode.lower() == "enabled",
        pci_bus_id=values.get("pci.bus_id"),
        power_limit_w=_number(values.get("power.limit")),
        power_w=_number(values.get("power.draw")),
        temperature_c=_whole(values.get("temperature.gpu")),
        utilization=_whole(values.get("utilization.gpu")),
        compute_capability=values.get("compute_cap"),
    )


def parse_query_xml(text: str) -> SmiReading:
    """Parse `nvidia-smi -q -x`. MIG slices are devices of their own where the driver names their UUID."""
    if len(text) > MAX_XML:
        return SmiReading(devices=(), problems=("nvidia-smi's XML is larger than 4 MiB and was not read.",))
    if _INTERNAL_SUBSET.search(text):
        return SmiReading(devices=(), problems=("nvidia-smi's XML defines entities and was not read.",))
    try:
        # Size is bounded, entity definitions are refused above, and expat never fetches an external subset.
        root = ET.fromstring(text)  # noqa: S314
    except (ET.ParseError, ValueError) as problem:
        return SmiReading(devices=(), problems=(f"nvidia-smi's XML cannot be read: {str(problem)[:160]}.",))
    devices: list[Device] = []
    problems: list[str] = []
    for position, gpu in enumerate(root.findall("gpu")[:MAX_DEVICES]):
        uuid = read_value(gpu.findtext("uuid"))
        if uuid is None:
            problems.append(f"GPU number {position} of nvidia-smi's XML has no UUID.")
            continue
        devices.append(_device_from_element(uuid=uuid, index=position, gpu=gpu))
        slices, without = _slices(gpu=gpu)
        devices += slices
        problems += without
    return SmiReading(
        devices=tuple(devices),
        driver=read_value(root.findtext("driver_version")),
        cuda=read_value(root.findtext("cuda_version")),
        problems=tuple(problems),
    )


def _device_from_element(*, uuid: str, index: int, gpu: ET.Element) -> Device:
    mode = read_value(gpu.findtext("mig_mode/current_mig"))
    return Device(
        uuid=uuid,
        kind="gpu",
        index=index,
        name=read_value(gpu.findtext("product_name")) or "unknown",
        memory_total=_mebibytes(gpu.findtext("fb_memory_usage/total")),
        memory_used=_mebibytes(gpu.findtext("fb_memory_usage/used")),
        memory_reserved=_mebibytes(gpu.findtext("fb_memory_usage/reserved")),
        mig_enabled=None if mode is None else mode.lower() == "enabled",
        pci_bus_id=read_value(gpu.get("id")),
        power_limit_w=_number(gpu.findtext("gpu_power_readings/current_power_limit")),
        power_w=_number(
            gpu.findtext("gpu_power_readings/instant_power_draw") or gpu.findtext("gpu_power_readings/power_draw")
        ),
        temperature_c=_whole(gpu.findtext("temperature/gpu_temp")),
        utilization=_whole(gpu.findtext("utilization/gpu_util")),
        # The XML of driver 580 does not carry the compute capability.
        compute_capability=read_value(gpu.findtext("compute_cap")),
    )


def _slices(*, gpu: ET.Element) -> tuple[list[Device], list[str]]:
    found: list[Device] = []
    problems: list[str] = []
    for position, part in enumerate(gpu.findall("mig_devices/mig_device")[:MAX_DEVICES]):
        uuid = read_value(part.findtext("uuid"))
        if uuid is None:
            problems.append(f"MIG device {position} of {gpu.get('id', 'a GPU')} has no UUID and cannot be used.")
            continue
        found.append(
            Device(
                uuid=uuid,
                kind="mig",
                index=_whole(part.findtext("index")),
                name=f"{read_value(gpu.findtext('product_name')) or 'GPU'} MIG",
                memory_total=_mebibytes(part.findtext("fb_memory_usage/total")),
                memory_used=_mebibytes(part.findtext("fb_memory_usage/used")),
                memory_reserved=_mebibytes(part.findtext("fb_memory_usage/reserved")),
                pci_bus_id=read_value(gpu.get("id")),
                parent=read_value(gpu.findtext("uuid")),
            )
        )
    return found, problems


def _number(text: str | None) -> float | None:
    """Read "79.53 W", "700", "37 C"; None for anything that does not begin with a number."""
    value = read_value(text)
    if value is None:
        return None
    head = value.split()[0]
    return float(head) if _NUMBER.fullmatch(head) else None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _mebibytes(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or number < 0 else int(number * MIB)
