"""Builds the plan of a rolling restart: running instances are replaced in order, the next one only when the one before serves.

Each stays on its devices and, unless its revision names another, on its port; its bytes pass from the launch that ends
to the one that takes its place. So the deployment answers all the while, and a revision that does not come up costs
one instance, not all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deployments.planning.build_start import cache_notes, is_warm, kept_notes, seal_starts
from deployments.planning.decisions import Decided, Launching, decide, starting
from deployments.planning.host_checks import judge_host, note_host
from deployments.planning.intent import (
    head,
    launch_intent,
    launches_known,
    order_intent,
    start_preconditions,
    stop_intent,
)
from deployments.planning.placement import DeviceRoom, Group, ModelFigures, Placement, measure_room, no_size, place_on
from deployments.planning.plan import HostRef, Note, Plan, RevisionRef, RunningInstance, Taken
from deployments.planning.ports import pass_on_ports
from deployments.planning.refusals import Refusal, RefusalCode, Refused
from deployments.planning.start_order import StartOrder, order_restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deployments.planning.decisions import Place
    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.model import Device, HostFacts


def build_restart_plan(
    *,
    spec: DeploymentSpec,
    revision: RevisionRef,
    host: HostRef,
    facts: HostFacts,
    facts_age_s: int,
    taken: Taken,
    targets: Sequence[RunningInstance],
    at_a_time: int,
    ids: Callable[[], str],
    allow_code_loading: bool,
) -> Plan | Refused:
    """Plan the replacement of these running instances by launches of the revision, so many at a time.

    `ids` gives a new launch id at each call (called only if all is well).
    """
    replaced = {target.slot: target for target in targets if target.slot < spec.instances}
    ended = {target.launch_id for target in replaced.values()}
    kept = tuple(instance for instance in taken.instances if instance.launch_id not in ended)
    reasons = judge_host(spec=spec, host=host, facts=facts, facts_age_s=facts_age_s)
    reasons += [] if replaced else [_nothing_to_restart(spec=spec, host=host)]
    decided = decide(
        spec=spec,
        host=host,
        facts=facts,
        taken=taken,
        allow_code_loading=allow_code_loading,
        caches_of=revision.deployment_id,
        place=_staying(spec=spec, replaced=replaced, kept=kept, taken=taken),
        ports=pass_on_ports(spec=spec, replaced=replaced, taken=taken),
    )
    if isinstance(decided, list) or reasons:
        return Refused(reasons=(*reasons, *(decided if isinstance(decided, list) else ())))
    made = _Restart(spec=spec, revision=revision, host=host, decided=decided, replaced=replaced)
    launches = decided.launches(ids=ids)
    entries = made.entries(launches)
    order = order_restarts(
        launches=[starting(launch, workers=spec.workers) for launch in launches],
        at_a_time=at_a_time,
        cores=facts.cpu_count,
        memory_available=facts.memory_available,
        warm=is_warm(entries, decided=decided, taken=taken),
    )
    notes = (
        *note_host(facts=facts, vllm=decided.vllm),
        *cache_notes(spec=spec, launches=launches),
        *_rolling_notes(order, count=len(launches), others=len(kept)),
        *kept_notes(kept=kept, revision=revision),
    )
    return made.seal(launches=launches, entries=entries, order=order, notes=notes)


@dataclass(frozen=True, kw_only=True)
class _Restart:
    """What all parts of the plan are written from."""

    spec: DeploymentSpec
    revision: RevisionRef
    host: HostRef
    decided: Decided
    replaced: Mapping[int, RunningInstance]

    def entries(self, launches: Sequence[Launching]) -> list[dict[str, Any]]:
        """Each launch of the intent, with the one whose place it takes."""
        return [
            {
                **launch_intent(launch=launch, spec=self.spec, revision=self.revision, decided=self.decided),
                "replaces": self.replaced[launch.slot].launch_id,
            }
            for launch in launches
        ]

    def seal(
        self,
        *,
        launches: Sequence[Launching],
        entries: Sequence[Mapping[str, Any]],
        order: StartOrder,
        notes: Sequence[Note],
    ) -> Plan:
        ends = [self.replaced[slot] for slot in sorted(self.replaced)]
        starts = start_preconditions(
            host=self.host, spec=self.spec, decided=self.decided, launches=launches, revision=self.revision
        )
        return seal_starts(
            intent={
                **head(kind="restart", revision=self.revision, host=self.host),
                "launches": entries,
                "stops": [stop_intent(target, reason="restart") for target in ends],
                "order": order_intent(order),
            },
            preconditions=(*starts, *launches_known(ends)),
            notes=notes,
            decided=self.decided,
            launches=launches,
        )


def _staying(
    *, spec: DeploymentSpec, replaced: Mapping[int, RunningInstance], kept: Sequence[RunningInstance], taken: Taken
) -> Place:
    def place(devices: Sequence[Device], model: ModelFigures, can_pin: bool) -> Placement | list[Refusal]:
        members = _stay(spec=spec, replaced=replaced, devices=devices, taken=taken)
        if isinstance(members, list):
            return members
        return place_on(spec=spec, members=members, kept=kept, model=model, can_pin=can_pin)

    return place


def _stay(
    *, spec: DeploymentSpec, replaced: Mapping[int, RunningInstance], devices: Sequence[Device], taken: Taken
) -> dict[int, Group] | list[Refusal]:
    """Give each slot the devices it has; what its launch holds there is counted as free."""
    allowed = {device.uuid: device for device in devices}
    rooms: dict[str, DeviceRoom] = {}
    groups: dict[tuple[str, ...], Group] = {}
    members: dict[int, Group] = {}
    refusals: list[Refusal] = []
    for slot, target in sorted(replaced.items()):
        if len(target.devices) != spec.workers or not set(target.devices) <= set(allowed):
            refusals.append(_would_move(target=target, spec=spec))
            continue
        for uuid in target.devices:
            room = measure_room(device=allowed[uuid], taken=taken)
            if room is None:
                return [no_size(allowed[uuid])]
            freed = sum(other.reserved.get(uuid, 0) for other in replaced.values())
            rooms.setdefault(uuid, replace(room, ours=room.ours - freed))
        groups.setdefault(target.devices, tuple(rooms[uuid] for uuid in target.devices))
        members[slot] = groups[target.devices]
    return refusals or members


def _would_move(*, target: RunningInstance, spec: DeploymentSpec) -> Refusal:
    have, wanted = len(target.devices), spec.workers
    differ = f"needs {wanted}" if have != wanted else "allows others"
    return Refusal(
        code=RefusalCode.RESTART_MOVES,
        message=f"{target.instance} runs on {have} device{'s' if have != 1 else ''} and the revision {differ};"
        " a restart in order keeps each instance where it is.",
        next_step="Plan a stop, then a start.",
        numbers={"have": have, "wanted": wanted},
    )


def _nothing_to_restart(*, spec: DeploymentSpec, host: HostRef) -> Refusal:
    return Refusal(
        code=RefusalCode.NOTHING_TO_RESTART,
        message=f"Nothing of {spec.name} runs on {host.name} that the revision keeps.",
        next_step="Plan a start.",
    )


def _rolling_notes(order: StartOrder, *, count: int, others: int) -> list[Note]:
    """What the order means for those who send requests."""
    together = min(order.side_by_side, count)
    if count == 1:
        text = "It is stopped, then started anew; it serves nobody meanwhile."
    elif together < count:
        text = (
            f"{'One' if together == 1 else together} at a time: the next is stopped when the one before it serves. If one"
            f" does not come up, those after it stay as they are. {count + others - together} of {count + others} serve"
            " meanwhile."
        )
    else:
        text = f"All {count} are stopped at once, and started anew."
    return [Note(code="ROLLING", message=text, level="info" if together < count + others else "warning")]
