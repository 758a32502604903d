"""Builds the plan of a start or a stop from the spec, the host's facts and the ledgers.

A refusal carries every reason that was found, not only the first.

Nothing is looked up and nothing is invented here: facts, ages, what is taken and new ids all come in as
arguments, so the same arguments always give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from deployments.planning.arguments import (
    LaunchShape,
    build_argv,
    build_environment,
    can_pin_kv_cache,
    check_arguments,
)
from deployments.planning.host_checks import judge_host, note_host
from deployments.planning.host_choices import ChosenVllm, choose_model, choose_vllm, read_figures
from deployments.planning.memory_bars import build_bars
from deployments.planning.placement import DeviceRoom, Need, Placement, place_instances, select_devices
from deployments.planning.plan import (
    HostRef,
    Note,
    Plan,
    Precondition,
    RevisionRef,
    RunningInstance,
    Taken,
    seal_plan,
)
from deployments.planning.ports import assign_ports
from deployments.planning.refusals import Refusal, RefusalCode, Refused
from deployments.planning.start_order import Starting, StartOrder, compile_key, order_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.model import Device, HostFacts

# A plan is made from facts younger than `host_checks.MAX_FACTS_AGE_S`; at its run they may be this old.
MAX_FACTS_AGE_AT_RUN_S = 3600


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One launch, decided: everything that its part of the intent and its bar need."""

    launch_id: str
    slot: int
    shape: LaunchShape
    need: Need


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """Every choice of a start: which vLLM, which devices and bytes, which ports."""

    vllm: ChosenVllm
    placement: Placement
    ports: Mapping[int, int]
    notes: tuple[Note, ...]


def slot_key(*, deployment_id: int | str, slot: int) -> str:
    """Return the name under which the agent keeps one live launch per slot; a file name on the host."""
    return f"{deployment_id}-{slot}"


def build_start_plan(
    *,
    spec: DeploymentSpec,
    revision: RevisionRef,
    host: HostRef,
    facts: HostFacts,
    facts_age_s: int,
    taken: Taken,
    ids: Callable[[], str],
    allow_code_loading: bool,
) -> Plan | Refused:
    """Plan the start of every slot that does not run yet.

    `ids` gives a new launch id at each call (called only if all is well).
    """
    slots, kept = _split_slots(spec=spec, taken=taken)
    reasons = judge_host(spec=spec, host=host, facts=facts, facts_age_s=facts_age_s)
    reasons += [] if slots else [_already_running(spec=spec)]
    decided = _decide(
        spec=spec, host=host, facts=facts, slots=slots, taken=taken, allow_code_loading=allow_code_loading
    )
    if isinstance(decided, list) or reasons:
        return Refused(reasons=(*reasons, *(decided if isinstance(decided, list) else ())))
    launches = [_launch(decided=decided, slot=slot, launch_id=ids()) for slot in slots]
    vllm = decided.vllm
    entries = [
        _launch_intent(
            launch=launch, spec=spec, revision=revision, vllm=vllm, room=decided.placement.devices[launch.slot][0]
        )
        for launch in launches
    ]
    order = order_starts(
        launches=[_starting(launch, workers=spec.workers) for launch in launches],
        cores=facts.cpu_count,
        memory_available=facts.memory_available,
        warm=all(entry["compile_key"] in taken.compiled for entry in entries),
    )
    intent = {
        **_head(kind="start", revision=revision, host=host),
        "launches": entries,
        "stops": [],
        "order": _order_intent(order),
    }
    return seal_plan(
        intent=intent,
        preconditions=_start_preconditions(host=host, spec=spec, vllm=vllm, launches=launches, revision=revision),
        notes=(
            *decided.notes,
            *note_host(facts=facts, vllm=vllm),
            *_cache_notes(spec=spec, launches=launches),
            *_order_notes(order, count=len(launches)),
            *_kept_notes(kept=kept, revision=revision),
        ),
        memory=build_bars(
            rooms=[room for group in decided.placement.devices.values() for room in group],
            needs=[(launch.launch_id, launch.shape.devices, launch.need) for launch in launches],
        ),
    )


def _decide(
    *,
    spec: DeploymentSpec,
    host: HostRef,
    facts: HostFacts,
    slots: Sequence[int],
    taken: Taken,
    allow_code_loading: bool,
) -> _Decided | list[Refusal]:
    """Ask every question, also after a no, and return all choices or all refusals."""
    vllm = choose_vllm(spec=spec, host=host, facts=facts)
    version = None if isinstance(vllm, Refusal) else vllm.version
    model, model_reasons = choose_model(spec=spec, host=host, facts=facts)
    argument_reasons, notes = check_arguments(spec=spec, version=version, allow_code_loading=allow_code_loading)
    figures, figure_notes = read_figures(spec=spec, model=model)
    devices, device_reasons = select_devices(spec=spec, facts=facts)
    if devices and not isinstance(vllm, Refusal):
        key = _expected_key(spec=spec, vllm=vllm, device=devices[0])
        figures = replace(figures, measured_overhead=taken.overheads.get(key))
    placement: Placement | list[Refusal] = []
    if not device_reasons:
        can_pin = version is None or can_pin_kv_cache(version)
        placement = place_instances(
            spec=spec, slots=slots, devices=devices, taken=taken, model=figures, can_pin=can_pin
        )
    ports = assign_ports(spec=spec, slots=slots, taken=taken)
    reasons = [
        *([vllm] if isinstance(vllm, Refusal) else ()),
        *model_reasons,
        *argument_reasons,
        *device_reasons,
        *(placement if isinstance(placement, list) else ()),
        *(ports if isinstance(ports, list) else ()),
    ]
    if reasons or isinstance(vllm, Refusal) or isinstance(placement, list) or isinstance(ports, list):
        return reasons
    return _Decided(vllm=vllm, placement=placement, ports=ports, notes=(*notes, *figure_notes))


def _expected_key(*, spec: DeploymentSpec, vllm: ChosenVllm, device: Device) -> str:
    """The compile key that launches of this plan will have; port, share and size of the cache are no part of it."""
    pinned = 1 if can_pin_kv_cache(vllm.version) else None
    shape = LaunchShape(devices=(device.uuid,), port=0, utilization="0", kv_cache_bytes=pinned)
    argv = build_argv(spec=spec, installation=vllm.installation, version=vllm.version, launch=shape)
    return compile_key(argv=argv, version=str(vllm.version), device=device.name)


def build_stop_plan(
    *,
    deployment_id: int | str,
    deployment_name: str,
    host: HostRef,
    targets: Sequence[RunningInstance],
    reason: str,
    revision: RevisionRef | None = None,
    kind: Literal["stop", "sweep"] = "stop",
    grace_s: int = 30,
    second_term_s: int = 10,
) -> Plan | Refused:
    """Plan the stop of launches, or (`kind` sweep) the removal of what an API server left behind.

    All go side by side. A second SIGTERM follows the first, which vLLM swallows while it starts.
    """
    if not targets:
        return Refused(reasons=(_nothing_to_stop(deployment_name=deployment_name, host=host),))
    ordered = sorted(targets, key=lambda target: (target.slot, target.launch_id))
    intent: dict[str, Any] = {
        "form": 1,
        "kind": kind,
        "deployment": {"id": deployment_id, "name": deployment_name},
        "revision": None
        if revision is None
        else {"id": revision.id, "number": revision.number, "digest": revision.digest},
        "host": _host_intent(host),
        "launches": [],
        "stops": [
            {
                **_stop_intent(target),
                "grace_s": grace_s,
                "second_term_s": second_term_s,
                "reason": reason,
            }
            for target in ordered
        ],
        "order": {"after": {}},
    }
    known = [
        Precondition(code="launch_known", subject=target.slot_key, wanted=target.launch_id, launch_id=target.launch_id)
        for target in ordered
    ]
    return seal_plan(intent=intent, preconditions=(*_identity(host), *known), notes=())


def _stop_intent(target: RunningInstance) -> dict[str, Any]:
    return {
        "launch_id": target.launch_id,
        "instance": {"name": target.instance, "slot": target.slot},
        "slot_key": target.slot_key,
        "devices": list(target.devices),
        "address": target.address,
        "port": target.port,
        "reserved_bytes": dict(sorted(target.reserved.items())),
    }


def _nothing_to_stop(*, deployment_name: str, host: HostRef) -> Refusal:
    return Refusal(
        code=RefusalCode.NOTHING_TO_STOP,
        message=f"Nothing of {deployment_name} runs on {host.name}.",
        next_step="Refresh the host; if processes are shown there, sweep them as orphans.",
    )


def _split_slots(*, spec: DeploymentSpec, taken: Taken) -> tuple[list[int], list[RunningInstance]]:
    running = {instance.slot: instance for instance in taken.instances}
    return [slot for slot in range(spec.instances) if slot not in running], list(taken.instances)


def _already_running(*, spec: DeploymentSpec) -> Refusal:
    return Refusal(
        code=RefusalCode.ALREADY_RUNNING,
        message=f"All {spec.instances} instances of {spec.name} run already.",
        next_step="Stop those that should start anew, or raise the number of instances.",
        numbers={"instances": spec.instances},
    )


def _launch(*, decided: _Decided, slot: int, launch_id: str) -> _Launch:
    need = decided.placement.needs[slot]
    shape = LaunchShape(
        devices=tuple(room.device.uuid for room in decided.placement.devices[slot]),
        port=decided.ports[slot],
        utilization=None if need.share is None else format(need.share.normalize(), "f"),
        kv_cache_bytes=need.pinned,
    )
    return _Launch(launch_id=launch_id, slot=slot, shape=shape, need=need)


def _head(*, kind: str, revision: RevisionRef, host: HostRef) -> dict[str, Any]:
    return {
        "form": 1,
        "kind": kind,
        "deployment": {"id": revision.deployment_id, "name": revision.deployment_name},
        "revision": {"id": revision.id, "number": revision.number, "digest": revision.digest},
        "host": _host_intent(host),
    }


def _host_intent(host: HostRef) -> dict[str, Any]:
    return {
        "id": host.id,
        "name": host.name,
        "machine_id": host.machine_id,
        "host_key_fingerprint": host.host_key_fingerprint,
    }


def _starting(launch: _Launch, *, workers: int) -> Starting:
    return Starting(
        launch_id=launch.launch_id,
        devices=launch.shape.devices,
        pinned=launch.need.pinned is not None,
        weights=launch.need.weights.bytes * workers,
    )


def _order_intent(order: StartOrder) -> dict[str, Any]:
    return {
        "mode": order.mode,
        "side_by_side": order.side_by_side,
        "leader": order.leader,
        "after": {launch_id: list(before) for launch_id, before in order.after.items()},
    }


def _launch_intent(
    *, launch: _Launch, spec: DeploymentSpec, revision: RevisionRef, vllm: ChosenVllm, room: DeviceRoom
) -> dict[str, Any]:
    installation, version = vllm.installation, vllm.version
    argv = build_argv(spec=spec, installation=installation, version=version, launch=launch.shape)
    return {
        "launch_id": launch.launch_id,
        "instance": {"name": f"{revision.deployment_name}-{launch.slot}", "slot": launch.slot},
        "slot_key": slot_key(deployment_id=revision.deployment_id, slot=launch.slot),
        "devices": list(launch.shape.devices),
        "address": spec.address,
        "port": launch.shape.port,
        "argv": argv,
        "compile_key": compile_key(argv=argv, version=str(version), device=room.device.name),
        "env": build_environment(spec=spec, version=version, launch=launch.shape),
        "secrets": dict(sorted(spec.secrets.items())),
        "reserved_bytes": dict.fromkeys(launch.shape.devices, launch.need.reserved),
        "served_name": spec.served_model_name,
        "task": spec.task,
        "model_path": spec.model,
        "executable": installation.executable or installation.python,
        "vllm_version": str(version),
        "memory": _memory_intent(launch.need),
        "expected": {
            "max_model_len": spec.max_model_len,
            "kv_tokens": launch.need.kv_tokens,
            "full_requests": launch.need.full_requests,
        },
    }


def _memory_intent(need: Need) -> dict[str, Any]:
    """Bytes on each of its devices, term by term (the sum is the peak), and the range of what it holds once ready."""
    low, high = need.ready_range
    return {
        "weights": need.weights.bytes,
        "kv_cache": need.kv_cache,
        "activations": need.overhead.activations.bytes,
        "runtime": need.overhead.runtime.bytes,
        "graphs": need.overhead.graphs.bytes,
        "low": low,
        "high": high,
        "measured": need.overhead.runtime.source == "measured",
        "pinned": need.pinned is not None,
    }


def _identity(host: HostRef) -> tuple[Precondition, ...]:
    return (
        Precondition(code="host_key", subject=host.name, wanted=host.host_key_fingerprint),
        Precondition(code="machine_id", subject=host.name, wanted=host.machine_id),
    )


def _start_preconditions(
    *,
    host: HostRef,
    spec: DeploymentSpec,
    vllm: ChosenVllm,
    launches: Sequence[_Launch],
    revision: RevisionRef,
) -> tuple[Precondition, ...]:
    executable = vllm.installation.executable or vllm.installation.python
    found = [
        *_identity(host),
        Precondition(code="facts_age_s", subject=host.name, wanted=MAX_FACTS_AGE_AT_RUN_S),
        Precondition(code="vllm_version", subject=executable, wanted=str(vllm.version)),
        Precondition(code="model_present", subject=spec.model, wanted=spec.model),
    ]
    for launch in launches:
        key = slot_key(deployment_id=revision.deployment_id, slot=launch.slot)
        found.append(Precondition(code="slot_free", subject=key, wanted=launch.launch_id, launch_id=launch.launch_id))
        found.append(
            Precondition(code="port_free", subject=spec.address, wanted=launch.shape.port, launch_id=launch.launch_id)
        )
        found += [
            Precondition(code="free_bytes", subject=uuid, wanted=launch.need.reserved, launch_id=launch.launch_id)
            for uuid in launch.shape.devices
        ]
    return tuple(found)


def plan_summary(plan: Plan) -> Mapping[str, int]:
    """Count what a plan does, for one line in a list: {"starts": 3, "stops": 0, "steps": 3}."""
    return {"starts": len(plan.launches), "stops": len(plan.stops), "steps": len(plan.order)}


def _cache_notes(*, spec: DeploymentSpec, launches: Sequence[_Launch]) -> list[Note]:
    """Whether the caches hold as many requests of the whole context as are let in at a time."""
    held = [launch.need.full_requests for launch in launches if launch.need.full_requests is not None]
    if spec.max_num_seqs is None or not held or min(held) >= spec.max_num_seqs:
        return []
    return [
        Note(
            code="CACHE_BELOW_SEQUENCES",
            message=f"The KV cache holds {min(held)} requests of the whole context length at a time; max_num_seqs lets"
            f" {spec.max_num_seqs} in. Beyond that long requests are interrupted and computed again.",
        )
    ]


def _order_notes(order: StartOrder, *, count: int) -> list[Note]:
    """How several instances come up, in words."""
    if count < 2:
        return []
    if order.mode == "gated":
        text = "On each device they start one after another, since vLLM measures its cache from what is free."
    elif order.leader is not None:
        text = (
            "One goes first, since nothing like it has been compiled on this host; the others follow when its engine is"
        )
        text += f" ready, {order.side_by_side} side by side."
    else:
        text = f"Their caches are pinned, so they start side by side, {order.side_by_side} at a time."
    return [Note(code="START_ORDER", message=text)]


def _kept_notes(*, kept: Sequence[RunningInstance], revision: RevisionRef) -> list[Note]:
    notes = []
    for instance in sorted(kept, key=lambda item: item.slot):
        other = instance.revision_number is not None and instance.revision_number != revision.number
        what = f" with revision {instance.revision_number}" if other else ""
        notes.append(
            Note(
                code="KEPT_OTHER_REVISION" if other else "KEPT",
                message=f"{instance.instance} runs already{what} on port {instance.port} and stays as it is.",
                level="warning" if other else "info",
            )
        )
    return notes
