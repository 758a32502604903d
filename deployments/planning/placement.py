"""Which instance goes on which devices, and how each device's memory is divided.

Everything is whole bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from deployments.planning import model_memory as memory
from deployments.planning.memory_terms import (
    Overhead,
    Term,
    corrected,
    cpu_overhead,
    gpu_overhead,
    ready_range,
    weights_term,
)
from deployments.planning.refusals import Refusal, RefusalCode
from deployments.planning.sizes import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deployments.planning.plan import RunningInstance, Taken
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


Group = tuple[DeviceRoom, ...]


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """What is known about the model's size.

    `weights` is for all workers together; None where nothing is known. `measured_overhead`: bytes that a launch of the
    same kind held on a device beside weights and KV cache.
    """

    weights: int | None
    shape: memory.KvShape | None
    shape_reason: str | None
    config: Mapping[str, Any]
    measured_overhead: int | None = None


@dataclass(frozen=True, kw_only=True)
class Need:
    """One instance on one of its devices: weights + kv_cache + overhead = reserved.

    `pinned` is what vLLM is told to take for its KV cache; None lets it measure. `full_requests` is how many
    requests of the whole context length the cache holds at a time. None where it cannot be known.
    """

    weights: Term
    kv_cache: int
    overhead: Overhead
    reserved: int
    share: Decimal | None
    pinned: int | None
    kv_tokens: int | None
    full_requests: int | None

    @property
    def ready_range(self) -> tuple[int, int]:
        return ready_range(weights=self.weights, kv_cache=self.kv_cache, overhead=self.overhead)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """For each slot its devices and its need, which is the same on each of them."""

    devices: Mapping[int, Group]
    needs: Mapping[int, Need]


def measure_room(*, device: Device, taken: Taken) -> DeviceRoom | None:
    """Work out what is left on a device.

    None where its size is not known. Its total is what CUDA calls so: without the part that the driver keeps (616 MiB
    of an H200), which is what vLLM takes its share of. What is used beyond our reservations is foreign.
    """
    if device.memory_total is None:
        return None
    total = device.memory_total - (device.memory_reserved or 0)
    ours = taken.reserved.get(device.uuid, 0)
    foreign = max(0, (device.memory_used or 0) - ours)
    return DeviceRoom(device=device, total=total, ours=ours, foreign=foreign, reserve=total * RESERVE_PERCENT // 100)


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


def group_devices(
    *, spec: DeploymentSpec, devices: Sequence[Device], taken: Taken
) -> tuple[list[Group], list[Refusal]]:
    """Return the groups of devices that an instance takes whole, the emptiest first where the planner chooses."""
    rooms = [room for device in devices if (room := measure_room(device=device, taken=taken)) is not None]
    if len(rooms) < len(devices):
        return [], [no_size(device) for device in devices if device.memory_total is None]
    groups = [tuple(rooms[start : start + spec.workers]) for start in range(0, len(rooms), spec.workers)]
    groups = [group for group in groups if len(group) == spec.workers]
    if not groups:
        return [], [_too_few(spec=spec, have=len(rooms))]
    if spec.devices == "auto":
        groups.sort(key=lambda group: -min(room.available for room in group))
    return groups, []


def place_instances(
    *,
    spec: DeploymentSpec,
    slots: Sequence[int],
    devices: Sequence[Device],
    taken: Taken,
    model: ModelFigures,
    can_pin: bool,
) -> Placement | list[Refusal]:
    """Spread the slots over groups of devices, those with the fewest instances of this deployment first.

    On as many groups as there are slots for, fewer if they do not fit.
    """
    groups, first = group_devices(spec=spec, devices=devices, taken=taken)
    kept = taken.instances
    most = len(groups) if kept or spec.devices != "auto" else min(len(groups), len(slots))
    for count in range(most, 0, -1):
        members = _spread(slots=slots, groups=groups[:count], kept=kept)
        result = place_on(spec=spec, members=members, kept=kept, model=model, can_pin=can_pin)
        if isinstance(result, Placement):
            return result
        first = first or result
        if spec.devices != "auto":
            break
    return first


def _spread(*, slots: Sequence[int], groups: Sequence[Group], kept: Sequence[RunningInstance]) -> dict[int, Group]:
    """Give each slot the group with the fewest instances; so a slot that failed comes back into its gap."""
    counts = [count_on(group, kept) for group in groups]
    members: dict[int, Group] = {}
    for slot in slots:
        position = counts.index(min(counts))
        counts[position] += 1
        members[slot] = groups[position]
    return members


def count_on(group: Group, instances: Sequence[RunningInstance]) -> int:
    """How many of these instances use a device of the group."""
    uuids = {room.device.uuid for room in group}
    return sum(1 for instance in instances if uuids & set(instance.devices))


def place_on(
    *,
    spec: DeploymentSpec,
    members: Mapping[int, Group],
    kept: Sequence[RunningInstance],
    model: ModelFigures,
    can_pin: bool,
) -> Placement | list[Refusal]:
    """Work out what each slot needs on its group, which it shares with the kept instances of its deployment."""
    refusals: list[Refusal] = []
    needs: dict[int, Need] = {}
    for group in dict.fromkeys(members.values()):
        here = [slot for slot, chosen in members.items() if chosen is group]
        smallest = min(group, key=lambda room: room.total)
        sharing = len(here) + count_on(group, kept)
        need, problems = _need(spec=spec, room=smallest, count=sharing, model=model, can_pin=can_pin)
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
    weights = weights_term(size=-(-(model.weights or 0) // spec.workers))
    if room.device.kind == "cpu":
        return _cpu_need(spec=spec, room=room, weights=weights, model=model, can_pin=can_pin)
    overhead = corrected(gpu_overhead(spec=spec, config=model.config), measured=model.measured_overhead)
    kv_cache, budget = _kv_budget(spec=spec, room=room, count=count, weights=weights, overhead=overhead)
    if kv_cache <= 0:
        problem = _share_too_small(room=room, reserved=budget, weights=weights.bytes, overhead=overhead.bytes)
        return _gpu_need(spec, room, model, weights, overhead, kv_cache=0, pinned=None), [problem]
    wished = spec.kv_cache_memory_bytes is not None
    pinned = kv_cache if wished or (can_pin and _is_known(model)) else None
    need = _gpu_need(spec, room, model, weights, overhead, kv_cache=kv_cache, pinned=pinned)
    problems = _one_request(spec=spec, room=room, kv_cache=kv_cache, model=model)
    return need, problems + ([_cannot_pin()] if wished and not can_pin else [])


def _kv_budget(
    *, spec: DeploymentSpec, room: DeviceRoom, count: int, weights: Term, overhead: Overhead
) -> tuple[int, int]:
    """Return the bytes of the KV cache and the budget they were taken from.

    A share that a person wrote is what vLLM divides: context and graphs come on top of it. The share of several
    instances is ours, and everything of an instance lies inside it.
    """
    if spec.kv_cache_memory_bytes is not None:
        return spec.kv_cache_memory_bytes, spec.kv_cache_memory_bytes
    if spec.gpu_memory_utilization is not None:
        budget = memory.share_bytes(total=room.total, share=spec.gpu_memory_utilization)
        return budget - weights.bytes - overhead.activations.bytes, budget
    budget = memory.share_bytes(total=room.total, share=memory.default_share(instances_on_device=count))
    return budget - weights.bytes - overhead.bytes, budget


def _is_known(model: ModelFigures) -> bool:
    """Whether the estimate is good enough to tell vLLM the bytes of its cache."""
    return bool(model.weights) and model.shape is not None and model.shape.exact


def _gpu_need(
    spec: DeploymentSpec,
    room: DeviceRoom,
    model: ModelFigures,
    weights: Term,
    overhead: Overhead,
    *,
    kv_cache: int,
    pinned: int | None,
) -> Need:
    reserved = weights.bytes + kv_cache + overhead.bytes
    # vLLM refuses to start unless this share of the device is free (0.10.2 to 0.33), with pinned bytes too; context
    # and graphs lie outside the share that it divides, so they are left out of it (0.11 on, measured on 0.25.1).
    inside = Decimal(weights.bytes + kv_cache + overhead.activations.bytes) / room.total
    share = max(Decimal("0.01"), inside.quantize(Decimal("0.001"), rounding="ROUND_DOWN"))
    if spec.kv_cache_memory_bytes is None and spec.gpu_memory_utilization is not None:
        share = spec.gpu_memory_utilization
    tokens = _tokens(model=model, kv_cache=kv_cache, kind=room.device.kind)
    return Need(
        weights=weights,
        kv_cache=kv_cache,
        overhead=overhead,
        reserved=reserved,
        share=min(share, Decimal(1)),
        pinned=pinned,
        kv_tokens=tokens,
        full_requests=_full_requests(spec=spec, model=model, tokens=tokens),
    )


def _cannot_pin() -> Refusal:
    return Refusal(
        code=RefusalCode.FLAG_UNKNOWN_IN_VERSION,
        message="This vLLM cannot be given the bytes of its KV cache on a GPU; releases from 0.10.2 on can.",
        next_step="Set gpu_memory_utilization instead, or choose a newer vLLM.",
        numbers={"flag": "--kv-cache-memory-bytes", "first": "0.10.2"},
    )


def _cpu_need(
    *, spec: DeploymentSpec, room: DeviceRoom, weights: Term, model: ModelFigures, can_pin: bool
) -> tuple[Need, list[Refusal]]:
    overhead = cpu_overhead(eager=spec.extra_args.get("--enforce-eager") is True)
    kv_cache = spec.kv_cache_memory_bytes or memory.CPU_KV_DEFAULT
    if not can_pin:
        # VLLM_CPU_KVCACHE_SPACE counts whole GiB.
        kv_cache = -(-kv_cache // GIB) * GIB
    tokens = _tokens(model=model, kv_cache=kv_cache, kind="cpu")
    return Need(
        weights=weights,
        kv_cache=kv_cache,
        overhead=overhead,
        reserved=weights.bytes + kv_cache + overhead.bytes,
        share=None,
        pinned=kv_cache,
        kv_tokens=tokens,
        full_requests=_full_requests(spec=spec, model=model, tokens=tokens),
    ), _one_request(spec=spec, room=room, kv_cache=kv_cache, model=model)


def _full_requests(*, spec: DeploymentSpec, model: ModelFigures, tokens: int | None) -> int | None:
    length = spec.max_model_len or memory.context_limit(model.config)
    return tokens // length if tokens is not None and length else None


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


def no_size(device: Device) -> Refusal:
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
