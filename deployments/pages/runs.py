"""A run: its steps with times, and the launches it acts on."""

import json

from deployments.models import Launch, Run
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
    """Those the plan starts; of a stop or a sweep, those it removes; of launches that take over from each other, the last begun."""
    stops = json.loads(bytes(run.plan.intent)).get("stops") or []
    keys = [str(stop.get("launch_id")) for stop in stops]
    rows = Launch.objects.filter(plan=run.plan) | Launch.objects.filter(pk__in=keys, deployment=run.deployment)
    found = list(rows.select_related("instance", "host", "revision").order_by("instance__slot", "created_at"))
    begun = {launch.replaces_id for launch in found if launch.replaces_id and was_asked_for(launch)}
    waiting = {launch.pk for launch in found if launch.replaces_id and not was_asked_for(launch)}
    return [launch for launch in found if launch.pk not in begun | waiting]


def was_asked_for(launch: Launch) -> bool:
    """The opposite of NEVER_ASKED, for a row at hand."""
    unstarted = launch.state == LaunchState.STOPPED and launch.launched_at is None
    return launch.state != LaunchState.PLANNED and not unstarted
