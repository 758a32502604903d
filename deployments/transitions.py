"""The one writer of states. Each move is a compare-and-swap, leaves an Event row, and tells the pages after the commit."""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from deployments.models import Event, Launch, Run
from deployments.planning.states import LAUNCH_MOVES, RUN_MOVES, LaunchState, RunState
from hosts.live import announce


def move_launch(
    launch: Launch,
    *,
    to: LaunchState,
    actor: str,
    now: datetime,
    reason: dict | None = None,
    believed: str | None = None,
    **values,
) -> bool:
    """Move a launch from wherever a legal arrow starts to `to`; False when somebody else was first.

    `believed`: the state in which it was when the move was decided; in any other it is not made. `values` are columns
    written in the same statement. Moving to the state it has is no move (False).
    """
    event = {"launch": launch, "at": now, "actor": actor, "reason": reason or {}}
    moves = LAUNCH_MOVES if believed is None else {LaunchState(believed): LAUNCH_MOVES[LaunchState(believed)]}
    return move(launch, to=to, moves=moves, event=event, topic=f"launch.{launch.pk}", values=values)


def move_run(run: Run, *, to: RunState, actor: str, now: datetime, reason: dict | None = None, **values) -> bool:
    """Move a run; False when it no longer is where a legal arrow starts."""
    event = {"run": run, "at": now, "actor": actor, "reason": reason or {}}
    return move(run, to=to, moves=RUN_MOVES, event=event, topic=f"run.{run.pk}", values=values)


def move(row: Launch | Run, *, to, moves: Mapping, event: dict, topic: str, values: dict) -> bool:
    """Compare, swap, write the event, announce: one transaction."""
    sources = [state.value for state in moves if to in moves[state]]
    rows = type(row).objects
    with transaction.atomic():
        before = rows.select_for_update().filter(pk=row.pk).values_list("state", flat=True).get()
        if not rows.filter(pk=row.pk, state=before, state__in=sources).update(state=to.value, **values):
            return False
        Event.objects.create(
            environment_id=row.environment_id,
            deployment_id=row.deployment_id,
            before=before,
            after=to.value,
            **event,
        )
        announce("fleet", f"deployment.{row.deployment_id}", topic)
    row.state = to.value
    return True
