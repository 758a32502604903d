"""A run: its steps with times, and the launches it acts on."""

import json

from deployments.models import Launch, Plan, Run
from deployments.pages.launches import launch_trouble
from deployments.pages.troubles import ORDER, count_states
from deployments.planning.states import RUN_ACTIVE, LaunchState


def run_page(run: Run) -> dict:
    launches = launches_of(run)
    return {
        "run": run,
        "active": run.state in RUN_ACTIVE,
        "steps": list(run.steps.all()),
        # What is wrong comes first; within that, the order of the slots.
        "launches": [
            {"launch": launch, "trouble": launch_trouble(launch)}
            for launch in sorted(launches, key=lambda launch: launch.state not in ORDER)
        ],
        "states": count_states(launches),
        "events": list(run.events.all()[:30]),
        "topics": " ".join([f"run.{run.pk}", *(f"launch.{launch.pk}" for launch in launches)]),
    }


def launches_of(run: Run) -> list[Launch]:
    """Those the plan starts; of a stop or a sweep, those it removes; of a restart, in each slot the one that is there."""
    stops = json.loads(bytes(run.plan.intent)).get("stops") or []
    keys = [str(stop.get("launch_id")) for stop in stops]
    rows = Launch.objects.filter(plan=run.plan) | Launch.objects.filter(pk__in=keys, deployment=run.deployment)
    found = list(rows.select_related("instance", "host", "revision").order_by("instance__slot", "created_at"))
    return in_place(found) if run.plan.kind == Plan.Kind.RESTART else found


def in_place(launches: list[Launch]) -> list[Launch]:
    """One launch per slot: that which ends until it has ended, then its heir; but no heir that was never begun."""
    heirs = {launch.replaces_id: launch for launch in launches if launch.replaces_id}
    chosen = []
    for launch in launches:
        heir = heirs.get(launch.pk)
        if heir is not None:
            waits = (
                launch.state != LaunchState.STOPPED and heir.launched_at is None and heir.state != LaunchState.FAILED
            )
            chosen.append(launch if waits else heir)
    return chosen
