"""Which instance goes on which devices, and how each device's memory is divided.

Everything is whole bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from deployments.planning import model_memory as memory
from deployments.planning.refusals import Refusal, RefusalCode
from deployments.planning.sizes import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deployments.planning.plan import Taken
    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.model import Device, HostFacts

# Kept free on every device: contexts and graphs of our processes lie outside their shares, drivers and others
# need room too.
RESERVE_PERCENT = 5


@dataclass(frozen=True, kw_only=True)
class DeviceRoom:
    """One device before the plan.

    `available` may be negative: then it is already promised beyond its size.
    """

    device: Device
    total: int
    ours: int
    foreign: int
    reserve: int

    @property
    def available(self) -> int:
        return self.total - self.reserve - self.ours - self.foreign


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """What is known about the model's size.

    `weights` is for all workers together; None where nothing is known.
    """

    weights: int | None
    shape: memory.KvShape | None
    shape_reason: str | None
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Need:
    """One instance on one of its devices: weights + kv_cache + overhead = reserved."""

    weights: int
    kv_cache: int
    overhead: int
    reserved: int
    share: Decimal | None
    pinned: int | None
    kv_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """For each slot its devices and its need, which is the same on each of them."""

    devices: Mapping[int, tuple[DeviceRoom, ...]]
    needs: Mapping[int, Need]


def measure_room(*, device: Device, taken: Taken) -> DeviceRoom | None:
    """Work out what is left on a device.

    None where its size is not known. What is used beyond our reservations is foreign.
    """
    if device.memory_total is None:
        return None
    ours = taken.reserved.get(device.uuid, 0)
    foreign = max(0, (device.memory_used or 0) - ours)
    reserve = device.memory_total * RESERVE_PERCENT // 100
    return DeviceRoom(device=device, total=device.memory_total, ours=ours, foreign=foreign, reserve=reserve)


def select_devices(*, spec: DeploymentSpec, facts: HostFacts) -> tuple[list[Device], list[Refusal]]:
    """Return the devices the spec allows, in its order, and a refusal for each that cannot be used."""
    if spec.devices == "auto":
        return _all_usable(facts), []
    found: list[Device] = []
    refusals: list[Refusal] = []
    for wanted in spec.devices:
        device = _find_device(facts=facts, wanted=wanted)
        if device is None:
            refusals.append(_unknown_device(facts=facts, wanted=wanted))
        elif device.mig_enabled and device.kind == "gpu":
            refusals.append(_partitioned(device))
        else:
            found.append(device)
    return found, refusals


def place_instances(
    *,
    spec: DeploymentSpec,
    slots: Sequence[int],
    devices: Sequence[Device],
    taken: Taken,
    model: ModelFigures,
    can_pin: bool,
) -> Placement | list[Refusal]:
    """Spread the slots over groups of devices, the emptiest first.

    On as many groups as there are slots for, fewer if they do not fit.
    """
    rooms = [room for device in devices if (room := measure_room(device=device, taken=taken)) is not None]
    if len(rooms) < len(devices):
        return [_no_size(device) for device in devices if device.memory_total is None]
    groups = [tuple(rooms[start : start + spec.workers]) for start in range(0, len(rooms), spec.workers)]
    groups = [group for group in groups if len(group) == spec.workers]
    if not groups:
        return [_too_few(spec=spec, have=len(rooms))]
    if spec.devices == "auto":
        groups.sort(key=lambda group: -min(room.available for room in group))
    first: list[Refusal] | None = None
    for count in range(min(len(groups), len(slots)), 0, -1):
        result = _try_groups(spec=spec, slots=slots, groups=groups[:count], model=model, can_pin=can_pin)
        if isinstance(result, Placement):
            return result
        first = first or result
        if spec.devices != "auto":
            break
    return first or []


def _try_groups(
    *,
    spec: DeploymentSpec,
    slots: Sequence[int],
    groups: Sequence[tuple[DeviceRoom, ...]],
    model: ModelFigures,
    can_pin: bool,
) -> Placement | list[Refusal]:
    members = {slot: groups[position % len(groups)] for position, slot in enumerate(slots)}
    refusals: list[Refusal] = []
    needs: dict[int, Need] = {}
    for group in groups:
        here = [slot for slot in slots if members[slot] is group]
        smallest = min(group, key=lambda room: room.total)
        need, problems = _need(spec=spec, room=smallest, count=len(here), model=model, can_pin=can_pin)
        refusals += problems
        for room in group:
            missing = need.reserved * len(here) - room.available
            if missing > 0:
                refusals.append(_too_small(room=room, need=need, count=len(here), missing=missing))
        needs.update(dict.fromkeys(here, need))
    return refusals or Placement(devices=members, needs=needs)


def _need(
    *, spec: DeploymentSpec, room: DeviceRoom, count: int, model: ModelFigures, can_pin: bool
) -> tuple[Need, list[Refusal]]:
    weights = -(-(model.weights or 0) // spec.workers)
    if room.device.kind == "cpu":
        return _cpu_need(spec=spec, room=room, weights=weights, model=model, can_pin=can_pin)
    overhead = memory.gpu_overhead(
        config=model.config, max_num_seqs=spec.max_num_seqs, tensor_parallel=spec.tensor_parallel
    )
    if spec.kv_cache_memory_bytes is not None:
        return _pinned_need(spec=spec, room=room, weights=weights, overhead=overhead, model=model, can_pin=can_pin)
    share = spec.gpu_memory_utilization or memory.default_share(instances_on_device=count)
    reserved = memory.share_bytes(total=room.total, share=share)
    kv_cache = reserved - weights - overhead
    if kv_cache <= 0:
        empty = Need(
            weights=weights,
            kv_cache=0,
            overhead=overhead,
            reserved=reserved,
            share=share,
            pinned=None,
            kv_tokens=None,
        )
        return empty, [_share_too_small(room=room, reserved=reserved, weights=weights, overhead=overhead)]
    problems = _one_request(spec=spec, room=room, kv_cache=kv_cache, model=model)
    # Overhead is an estimate, so only 95 % of the tokens it leaves are promised.
    tokens = _tokens(model=model, kv_cache=kv_cache * 95 // 100, kind=room.device.kind)
    return Need(
        weights=weights,
        kv_cache=kv_cache,
        overhead=overhead,
        reserved=reserved,
        share=share,
        pinned=None,
        kv_tokens=tokens,
    ), problems


def _pinned_need(
    *, spec: DeploymentSpec, room: DeviceRoom, weights: int, overhead: int, model: ModelFigures, can_pin: bool
) -> tuple[Need, list[Refusal]]:
    kv_cache = spec.kv_cache_memory_bytes or 0
    reserved = weights + kv_cache + overhead
    # vLLM still refuses to start unless the share of the device is free (0.10.2 to 0.33), so the share says
    # what is really needed.
    share = max(Decimal("0.01"), (Decimal(reserved) / room.total).quantize(Decimal("0.001"), rounding="ROUND_DOWN"))
    problems = _one_request(spec=spec, room=room, kv_cache=kv_cache, model=model)
    if not can_pin:
        problems.append(
            Refusal(
                code=RefusalCode.FLAG_UNKNOWN_IN_VERSION,
                message="This vLLM cannot be given the bytes of its KV cache on a GPU; releases from 0.10.2 on can.",
                next_step="Set gpu_memory_utilization instead, or choose a newer vLLM.",
                numbers={"flag": "--kv-cache-memory-bytes", "first": "0.10.2"},
            )
        )
    return Need(
        weights=weights,
        kv_cache=kv_cache,
        overhead=overhead,
        reserved=reserved,
        share=min(share, Decimal(1)),
        pinned=kv_cache,
        kv_tokens=_tokens(model=model, kv_cache=kv_cache, kind=room.device.kind),
    ), problems


def _cpu_need(
    *, spec: DeploymentSpec, room: DeviceRoom, weights: int, model: ModelFigures, can_pin: bool
) -> tuple[Need, list[Refusal]]:
    eager = spec.extra_args.get("--enforce-eager") is True
    overhead = memory.CPU_OVERHEAD_EAGER if eager else memory.CPU_OVERHEAD
    kv_cache = spec.kv_cache_memory_bytes or memory.CPU_KV_DEFAULT
    if not can_pin:
        # VLLM_CPU_KVCACHE_SPACE counts whole GiB.
        kv_cache = -(-kv_cache // GIB) * GIB
    return Need(
        weights=weights,
        kv_cache=kv_cache,
        overhead=overhead,
        reserved=weights + kv_cache + overhead,
        share=None,
        pinned=kv_cache,
        kv_tokens=_tokens(model=model, kv_cache=kv_cache, kind="cpu"),
    ), _one_request(spec=spec, room=room, kv_cache=kv_cache, model=model)


def _tokens(*, model: ModelFigures, kv_cache: int, kind: str) -> int | None:
    if model.shape is None or not model.shape.exact:
        return None
    return memory.kv_tokens(kv_bytes=kv_cache, shape=model.shape, block=memory.BLOCK_TOKENS[kind])


def _one_request(*, spec: DeploymentSpec, room: DeviceRoom, kv_cache: int, model: ModelFigures) -> list[Refusal]:
    """VLLM refuses to start where the KV cache does not hold one request of the full context length."""
    length = spec.max_model_len or memory.context_limit(model.config)
    if model.shape is None or not model.shape.exact or length is None or spec.task != "generate":
        return []
    wanted = length * model.shape.bytes_per_token
    if kv_cache >= wanted:
        return []
    longest = memory.kv_tokens(kv_bytes=kv_cache, shape=model.shape, block=1)
    return [
        Refusal(
            code=RefusalCode.KV_CACHE_TOO_SMALL,
            message=f"One request of {length:,} tokens needs {format_gib(wanted)} GiB of KV cache on"
            f" {room.device.uuid};"
            f" {format_gib(kv_cache)} GiB are planned, {format_gib(wanted - kv_cache)} GiB too few.",
            next_step=f"Set max_model_len to {longest:,} or less, or give the instance more memory.",
            numbers={
                "wanted": wanted,
                "have": kv_cache,
                "missing": wanted - kv_cache,
                "longest": longest,
                "device": room.device.uuid,
            },
        )
    ]


def _all_usable(facts: HostFacts) -> list[Device]:
    whole = [device for device in facts.devices if device.kind == "gpu" and not device.mig_enabled]
    # Slices are used only where no whole GPU is left: mixing both sizes in one deployment would surprise.
    return whole or [device for device in facts.devices if device.kind in ("mig", "cpu")]


def _find_device(*, facts: HostFacts, wanted: int | str) -> Device | None:
    if isinstance(wanted, int):
        return next((item for item in facts.devices if item.kind == "gpu" and item.index == wanted), None)
    return next((item for item in facts.devices if item.uuid == wanted), None)


def _unknown_device(*, facts: HostFacts, wanted: int | str) -> Refusal:
    have = ", ".join(
        f"{item.index}: {item.uuid}" if item.index is not None else item.uuid for item in facts.devices[:16]
    )
    return Refusal(
        code=RefusalCode.DEVICE_UNKNOWN,
        message=f"The host has no device {wanted}.",
        next_step=f"Choose among the devices it has ({have}), or set devices to auto.",
        numbers={"wanted": wanted},
    )


def _partitioned(device: Device) -> Refusal:
    return Refusal(
        code=RefusalCode.DEVICE_PARTITIONED,
        message=f"{device.uuid} is divided into MIG slices and cannot be used whole.",
        next_step="Name one of its slices (MIG-…), or have an administrator switch MIG off.",
        numbers={"device": device.uuid},
    )


def _no_size(device: Device) -> Refusal:
    return Refusal(
        code=RefusalCode.DEVICE_MEMORY_UNKNOWN,
        message=f"How much memory {device.uuid} has is not known.",
        next_step="Refresh the host's facts; if it stays so, check nvidia-smi on the host.",
        numbers={"device": device.uuid},
    )


def _too_few(*, spec: DeploymentSpec, have: int) -> Refusal:
    return Refusal(
        code=RefusalCode.NOT_ENOUGH_DEVICES,
        message=f"One instance needs {spec.workers} devices (tensor parallel {spec.tensor_parallel} times"
        " pipeline parallel"
        f" {spec.pipeline_parallel}); {have} can be used.",
        next_step="Lower the parallel sizes or choose a host with more devices.",
        numbers={"wanted": spec.workers, "have": have},
    )


def _too_small(*, room: DeviceRoom, need: Need, count: int, missing: int) -> Refusal:
    wanted = need.reserved * count
    return Refusal(
        code=RefusalCode.MEMORY_TOO_SMALL,
        message=f"{room.device.uuid} has {format_gib(max(0, room.available))} GiB left for this deployment;"
        f" {count} instance"
        f"{'s' if count > 1 else ''} need {format_gib(wanted)} GiB, {format_gib(missing)} GiB too much.",
        next_step="Stop something on this device, start fewer instances, or lower their share or KV cache.",
        numbers={
            "device": room.device.uuid,
            "total": room.total,
            "ours": room.ours,
            "foreign": room.foreign,
            "reserve": room.reserve,
            "wanted": wanted,
            "missing": missing,
            "instances": count,
        },
    )


def _share_too_small(*, room: DeviceRoom, reserved: int, weights: int, overhead: int) -> Refusal:
    missing = weights + overhead - reserved
    return Refusal(
        code=RefusalCode.MEMORY_TOO_SMALL,
        message=f"Each instance gets {format_gib(reserved)} GiB of {room.device.uuid}; its weights"
        f" ({format_gib(weights)}) and"
        f" overhead ({format_gib(overhead)}) leave nothing for the KV cache, {format_gib(max(missing, 1))}"
        f" GiB are missing.",
        next_step="Start fewer instances on a device, raise tensor parallel, or choose a larger GPU.",
        numbers={
            "device": room.device.uuid,
            "share": reserved,
            "weights": weights,
            "overhead": overhead,
            "missing": max(missing, 1),
        },
    )
