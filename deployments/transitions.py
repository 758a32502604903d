"""The one writer of states. Each move is a compare-and-swap, leaves an Event row, and tells the pages after the commit."""

from datetime import datetime

from django.db import transaction

from deployments.models import Event, Launch, Run
from deployments.planning.states import LAUNCH_MOVES, RUN_MOVES, LaunchState, RunState
from hosts.live import announce


def move_launch(
    launch: Launch, *, to: LaunchState, actor: str, now: datetime, reason: dict | None = None, **values
) -> bool:
    """Move a launch from wherever a legal arrow starts to `to`; False when somebody else was first.

    `values` are columns written in the same statement. Moving to the state it has is no move (False).
    """
    sources = [state.value for state in LaunchState if to in LAUNCH_MOVES[state]]
    with transaction.atomic():
        row = Launch.objects.select_for_update().filter(pk=launch.pk).values("state").get()
        moved = Launch.objects.filter(pk=launch.pk, state=row["state"], state__in=sources).update(
            state=to.value, **values
        )
        if not moved:
            return False
        Event.objects.create(
            environment_id=launch.environment_id,
            deployment_id=launch.deployment_id,
            launch=launch,
            at=now,
            actor=actor,
            before=row["state"],
            after=to.value,
            reason=reason or {},
        )
        announce("fleet", f"deployment.{launch.deployment_id}", f"launch.{launch.pk}")
    launch.state = to.value
    return True


def move_run(run: Run, *, to: RunState, actor: str, now: datetime, reason: dict | None = None, **values) -> bool:
    """Move a run; False when it no longer is where a legal arrow starts."""
    sources = [state.value for state in RunState if to in RUN_MOVES[state]]
    with transaction.atomic():
        row = Run.objects.select_for_update().filter(pk=run.pk).values("state").get()
        moved = Run.objects.filter(pk=run.pk, state=row["state"], state__in=sources).update(state=to.value, **values)
        if not moved:
            return False
        Event.objects.create(
            environment_id=run.environment_id,
            deployment_id=run.deployment_id,
            run=run,
            at=now,
            actor=actor,
            before=row["state"],
            after=to.value,
            reason=reason or {},
        )
        announce("fleet", f"deployment.{run.deployment_id}", f"run.{run.pk}")
    run.state = to.value
    return True
