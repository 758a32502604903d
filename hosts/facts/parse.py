"""Turns the body of the agent's `facts` answer (docs/agent-protocol.md) into HostFacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosts.facts.model import (
    CPU_DEVICE,
    Device,
    Disk,
    FactsProblem,
    GpuSource,
    HostFacts,
    ModelDirectory,
    SessionPolicy,
    VllmInstallation,
)
from hosts.facts.nvidia_smi import MAX_DEVICES, SmiReading, parse_query_csv, parse_query_xml
from hosts.facts.reading import (
    read_count,
    read_flag,
    read_integer,
    read_mapping,
    read_mappings,
    read_moment,
    read_number,
    read_text,
)

MAX_MODELS = 2000
MAX_INSTALLATIONS = 200
MAX_DISKS = 200


def parse_facts(body: Mapping[str, Any]) -> HostFacts | FactsProblem:
    """Read a `facts` body. Unknown fields are ignored.

    Only a missing identity makes the whole answer unusable.
    """
    if not isinstance(body, Mapping):
        return _problem(field="", what="is not an object")
    identity = {key: read_text(body, key, limit=255) for key in ("machine_id", "boot_id", "hostname")}
    for key, value in identity.items():
        if value is None:
            return _problem(field=key, what="is missing")
    cpu, memory, shm = read_mapping(body, "cpu"), read_mapping(body, "memory"), read_mapping(body, "shm")
    session = read_mapping(body, "session")
    source, reading, reason = _read_gpus(read_mapping(body, "gpus"))
    return HostFacts(
        machine_id=identity["machine_id"] or "",
        boot_id=identity["boot_id"] or "",
        hostname=identity["hostname"] or "",
        taken_at=read_moment(body, "clock"),
        utc_offset_s=read_integer(body, "utc_offset_s"),
        kernel=read_text(body, "kernel"),
        os=read_text(body, "os"),
        python=read_text(body, "python"),
        uid=read_count(body, "uid"),
        user=read_text(body, "user"),
        cpu_count=read_count(cpu, "count"),
        cpu_model=read_text(cpu, "model"),
        memory_total=read_count(memory, "total"),
        memory_available=read_count(memory, "available"),
        shm_total=read_count(shm, "total"),
        shm_free=read_count(shm, "free"),
        disks=_read_disks(body),
        devices=reading.devices or (_cpu_device(cpu=cpu, memory=memory),),
        gpu_source=source,
        gpu_reason=reason,
        driver=reading.driver,
        cuda=reading.cuda,
        vllm=_read_installations(body),
        models=_read_models(body),
        session=SessionPolicy(
            kill_user_processes=read_flag(session, "kill_user_processes"),
            linger=read_flag(session, "linger"),
            remove_ipc=read_flag(session, "remove_ipc"),
        ),
        state_root=read_text(read_mapping(body, "state_root"), "path"),
        warnings=reading.problems,
    )


def _problem(*, field: str, what: str) -> FactsProblem:
    return FactsProblem(
        code="FACTS_INCOMPLETE" if field else "FACTS_UNREADABLE",
        field=field,
        message=f"The host's facts cannot be used: {field or 'the answer'} {what}.",
        next_step="Refresh the facts of the host; if it stays so, read the agent's own messages on the host page.",
    )


def _read_gpus(gpus: Mapping[str, Any]) -> tuple[GpuSource, SmiReading, str | None]:
    source = gpus.get("source")
    if source == "nvml":
        return "nvml", _read_nvml(gpus), read_text(gpus, "reason")
    if source == "nvidia-smi":
        return "nvidia-smi", _read_smi(gpus), read_text(gpus, "reason")
    return "none", SmiReading(devices=()), read_text(gpus, "reason")


def _read_nvml(gpus: Mapping[str, Any]) -> SmiReading:
    devices: list[Device] = []
    problems: list[str] = []
    for position, record in enumerate(read_mappings(gpus, "devices", limit=MAX_DEVICES)):
        uuid = read_text(record, "uuid", limit=96)
        if uuid is None:
            problems.append(f"GPU number {position} of NVML's answer has no UUID and cannot be used.")
            continue
        devices.append(_nvml_device(uuid=uuid, record=record))
    return SmiReading(
        devices=tuple(devices),
        driver=read_text(gpus, "driver", limit=64),
        cuda=read_text(gpus, "cuda", limit=64),
        problems=tuple(problems),
    )


def _nvml_device(*, uuid: str, record: Mapping[str, Any]) -> Device:
    # "disabled", "enabled" (a GPU that is divided) or "instance" (a slice of one).
    mode = record.get("mig")
    return Device(
        uuid=uuid,
        kind="mig" if uuid.startswith("MIG-") or mode == "instance" else "gpu",
        index=read_count(record, "index"),
        name=read_text(record, "name", limit=128) or "unknown",
        memory_total=read_count(record, "memory_total"),
        memory_used=read_count(record, "memory_used"),
        memory_reserved=read_count(record, "memory_reserved"),
        mig_enabled=None if mode is None else mode in ("enabled", True),
        parent=read_text(record, "parent", limit=96),
        pci_bus_id=read_text(record, "pci_bus_id", limit=64),
        power_limit_w=read_number(record, "power_limit_w"),
        power_w=read_number(record, "power_w"),
        temperature_c=read_count(record, "temperature_c"),
        utilization=read_count(record, "utilization"),
        compute_capability=read_text(record, "compute_capability", limit=16),
    )


def _read_smi(gpus: Mapping[str, Any]) -> SmiReading:
    xml = gpus.get("xml")
    if isinstance(xml, str):
        return parse_query_xml(xml)
    text, fields = gpus.get("csv"), gpus.get("fields")
    if not isinstance(text, str) or not isinstance(fields, Sequence) or isinstance(fields, str):
        return SmiReading(devices=(), problems=("nvidia-smi's answer came without its text or its field names.",))
    reading = parse_query_csv(text=text, fields=[str(name) for name in fields])
    return SmiReading(
        devices=reading.devices,
        driver=reading.driver or read_text(gpus, "driver", limit=64),
        cuda=read_text(gpus, "cuda", limit=64),
        problems=reading.problems,
    )


def _cpu_device(*, cpu: Mapping[str, Any], memory: Mapping[str, Any]) -> Device:
    """Return the one device of a host without GPUs, whose memory is the host's RAM."""
    total, available = read_count(memory, "total"), read_count(memory, "available")
    return Device(
        uuid=CPU_DEVICE,
        kind="cpu",
        index=None,
        name=read_text(cpu, "model", limit=128) or "CPU",
        memory_total=total,
        memory_used=None if total is None or available is None else max(0, total - available),
    )


def _read_disks(body: Mapping[str, Any]) -> tuple[Disk, ...]:
    found = []
    for record in read_mappings(body, "disks", limit=MAX_DISKS):
        path = read_text(record, "path")
        if path is not None:
            filesystem = read_text(record, "filesystem", limit=64)
            found.append(
                Disk(
                    path=path,
                    total=read_count(record, "total"),
                    free=read_count(record, "free"),
                    filesystem=filesystem,
                )
            )
    return tuple(found)


def _read_installations(body: Mapping[str, Any]) -> tuple[VllmInstallation, ...]:
    found = []
    for record in read_mappings(body, "vllm", limit=MAX_INSTALLATIONS):
        python, executable = read_text(record, "python"), read_text(record, "executable")
        if python is not None or executable is not None:
            found.append(
                VllmInstallation(
                    python=python or "",
                    executable=executable,
                    version=read_text(record, "version", limit=128),
                    kind=read_text(record, "kind", limit=32) or "unknown",
                    torch=read_text(record, "torch", limit=128),
                )
            )
    return tuple(found)


def _read_models(body: Mapping[str, Any]) -> tuple[ModelDirectory, ...]:
    found = []
    for record in read_mappings(body, "models", limit=MAX_MODELS):
        path = read_text(record, "path")
        if path is None:
            continue
        config = record.get("config")
        error = read_text(record, "config_error")
        readable = isinstance(config, Mapping) and error is None
        found.append(
            ModelDirectory(
                path=path,
                config=config if readable else None,
                config_error=None if readable else error or "The directory has no readable config.json.",
                weight_bytes=read_count(record, "weight_bytes"),
                weight_files=read_count(record, "weight_files"),
                dtype_bytes=read_count(record, "dtype_bytes"),
                unreadable=read_text(record, "unreadable"),
            )
        )
    return tuple(found)
