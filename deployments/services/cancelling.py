"""Ending a run before it is done: asked for first, and by force only after that and by a right of its own.

A run is shown as cancelled when its worker has seen that nothing of what it began is left on the host, never before.
"""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from accounts.actors import Actor
from audit.record import record
from deployments.models import Run
from deployments.planning.states import RUN_ACTIVE, RunState
from deployments.services.runs import RunRefused, release_unstarted
from deployments.transitions import move_run
from hosts import queue
from hosts.live import announce


@transaction.atomic
def request_cancel(*, run: Run, by: Actor, now: datetime) -> None:
    """Ask for the end. A run that waits ends at once; one that runs ends when its worker has cleaned up."""
    asked = Run.objects.filter(pk=run.pk, state__in=ACTIVE, cancel_asked_at__isnull=True).update(cancel_asked_at=now)
    if not asked:
        return
    record(actor=by, action="run.cancel", subject=run.deployment, after={"run": run.pk})
    if is_unclaimed(run) and move_run(run, to=RunState.CANCELLED, actor=by.label, now=now, ended_at=now):
        release_unstarted(run, by=by, now=now)
    else:
        wake(run)
    announce(f"run.{run.pk}")


@transaction.atomic
def request_force(*, run: Run, by: Actor, now: datetime) -> None:
    """End a run that is being cancelled without waiting: what it began is killed, or, where the host cannot be asked,
    given up with a word on what may still run. Raises RunRefused where no cancel was asked for first.
    """
    found = Run.objects.select_for_update().get(pk=run.pk)
    if found.state not in RUN_ACTIVE or found.cancel_asked_at is None:
        raise force_too_early(found)
    if not Run.objects.filter(pk=run.pk, force_asked_at__isnull=True).update(force_asked_at=now):
        return
    record(actor=by, action="run.force_cancel", subject=run.deployment, after={"run": run.pk})
    wake(run)
    announce(f"run.{run.pk}")


ACTIVE = [state.value for state in RUN_ACTIVE]


def is_unclaimed(run: Run) -> bool:
    """No worker has ever had it. The row is ours until the end of the transaction, so none takes it meanwhile."""
    found = Run.objects.select_for_update().get(pk=run.pk)
    return found.state == RunState.QUEUED and not found.lease_owner


def wake(run: Run) -> None:
    """One that waits for its next attempt makes it now; one in a worker's hands is left there."""
    Run.objects.filter(pk=run.pk, lease_owner="").update(lease_until=None)
    queue.nudge("deployments.execute_run", run_id=run.pk)


def force_too_early(run: Run) -> RunRefused:
    if run.state not in RUN_ACTIVE:
        return RunRefused(
            code="RUN_ENDED",
            message=_("Run %(number)s has ended already.") % {"number": run.pk},
            next_step=_("Look at its page."),
        )
    return RunRefused(
        code="FORCE_BEFORE_CANCEL",
        message=_("Nobody has asked to cancel run %(number)s.") % {"number": run.pk},
        next_step=_("Cancel it first; end it by force only if that takes too long."),
    )
