"""Builds the plan of a start from the spec, the host's facts and the ledgers.

A refusal carries every reason that was found, not only the first.

Nothing is looked up and nothing is invented here: facts, ages, what is taken and new ids all come in as
arguments, so the same arguments always give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deployments.planning.decisions import Decided, Launching, decide, starting
from deployments.planning.host_checks import judge_host, note_host
from deployments.planning.intent import head, launch_intent, order_intent, start_preconditions
from deployments.planning.memory_bars import build_bars
from deployments.planning.placement import ModelFigures, Placement, place_instances
from deployments.planning.plan import HostRef, Note, Plan, Precondition, RevisionRef, RunningInstance, Taken, seal_plan
from deployments.planning.ports import assign_ports
from deployments.planning.refusals import Refusal, RefusalCode, Refused
from deployments.planning.start_order import StartOrder, order_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.model import Device, HostFacts


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

    def place(devices: Sequence[Device], model: ModelFigures, can_pin: bool) -> Placement | list[Refusal]:
        return place_instances(spec=spec, slots=slots, devices=devices, taken=taken, model=model, can_pin=can_pin)

    decided = decide(
        spec=spec,
        host=host,
        facts=facts,
        taken=taken,
        allow_code_loading=allow_code_loading,
        caches_of=revision.deployment_id,
        place=place,
        ports=assign_ports(spec=spec, slots=slots, taken=taken),
    )
    if isinstance(decided, list) or reasons:
        return Refused(reasons=(*reasons, *(decided if isinstance(decided, list) else ())))
    launches = decided.launches(ids=ids)
    entries = [launch_intent(launch=launch, spec=spec, revision=revision, decided=decided) for launch in launches]
    order = order_starts(
        launches=[starting(launch, workers=spec.workers) for launch in launches],
        cores=facts.cpu_count,
        memory_available=facts.memory_available,
        warm=is_warm(entries, decided=decided, taken=taken),
    )
    return seal_starts(
        intent={
            **head(kind="start", revision=revision, host=host),
            "launches": entries,
            "stops": [],
            "order": order_intent(order),
        },
        preconditions=start_preconditions(host=host, spec=spec, decided=decided, launches=launches, revision=revision),
        notes=(
            *note_host(facts=facts, vllm=decided.vllm),
            *cache_notes(spec=spec, launches=launches),
            *_order_notes(order, count=len(launches)),
            *kept_notes(kept=kept, revision=revision),
        ),
        decided=decided,
        launches=launches,
    )


def is_warm(entries: Sequence[Mapping[str, Any]], *, decided: Decided, taken: Taken) -> bool:
    """Whether nobody need go first: launches like these have served on the host, or each has a compile cache of its own."""
    return decided.caches is not None or all(entry["compile_key"] in taken.compiled for entry in entries)


def seal_starts(
    *,
    intent: Mapping[str, Any],
    preconditions: tuple[Precondition, ...],
    notes: Sequence[Note],
    decided: Decided,
    launches: Sequence[Launching],
) -> Plan:
    """The plan of something that starts: with the notes of its choices, and its devices as they are filled after it."""
    bars = build_bars(
        rooms=[room for group in decided.placement.devices.values() for room in group],
        needs=[(launch.launch_id, launch.shape.devices, launch.need) for launch in launches],
    )
    return seal_plan(intent=intent, preconditions=preconditions, notes=(*decided.notes, *notes), memory=bars)


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


def cache_notes(*, spec: DeploymentSpec, launches: Sequence[Launching]) -> list[Note]:
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


def kept_notes(*, kept: Sequence[RunningInstance], revision: RevisionRef) -> list[Note]:
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
