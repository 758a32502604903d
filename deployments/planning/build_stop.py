"""Builds the plan of a stop, or of a sweep of what an API server left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from deployments.planning.intent import SECOND_TERM_S, STOP_GRACE_S, host_intent, identity, launches_known, stop_intent
from deployments.planning.plan import HostRef, Plan, RevisionRef, RunningInstance, seal_plan
from deployments.planning.refusals import Refusal, RefusalCode, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def build_stop_plan(
    *,
    deployment_id: int | str,
    deployment_name: str,
    host: HostRef,
    targets: Sequence[RunningInstance],
    reason: str,
    revision: RevisionRef | None = None,
    kind: Literal["stop", "sweep"] = "stop",
    grace_s: int = STOP_GRACE_S,
    second_term_s: int = SECOND_TERM_S,
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
        "host": host_intent(host),
        "launches": [],
        "stops": [
            stop_intent(target, reason=reason, grace_s=grace_s, second_term_s=second_term_s)
            | ({"processes": [named_process(process) for process in target.processes]} if kind == "sweep" else {})
            for target in ordered
        ],
        "order": {"after": {}},
    }
    return seal_plan(intent=intent, preconditions=(*identity(host), *launches_known(ordered)), notes=())


def named_process(process: Mapping[str, Any]) -> dict[str, Any]:
    """A process that a sweep may signal, with why it is ours; nothing else is touched when the plan runs."""
    return {name: process.get(name) for name in ("pid", "start_time", "title", "role", "proof")}


def _nothing_to_stop(*, deployment_name: str, host: HostRef) -> Refusal:
    return Refusal(
        code=RefusalCode.NOTHING_TO_STOP,
        message=f"Nothing of {deployment_name} runs on {host.name}.",
        next_step="Refresh the host; if processes are shown there, sweep them as orphans.",
    )
