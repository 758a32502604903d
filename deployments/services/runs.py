"""A plan becomes a run; the run is claimed, carried out and ended. The row is the queue."""

import json
import logging
import os
import socket
import time
from datetime import datetime, timedelta
from uuid import uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db import connections as database_connections
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from accounts.actors import Actor, system_actor
from audit.canonical import digest as digest_of
from audit.record import record
from deployments import ledger
from deployments.execution.engine import Engine
from deployments.execution.limits import Limits
from deployments.execution.listener import LeaseLost
from deployments.execution.outcomes import Cancelled, Done, Outcome, PreconditionFailed
from deployments.execution.start import Roots
from deployments.models import Launch, Plan, Run
from deployments.planning.states import LAUNCH_TERMINAL, LaunchState, RunState
from deployments.services.listening import WorkerListener, resume_point, secrets_for
from deployments.transitions import move_launch, move_run
from hosts import queue
from hosts.agent_session import AgentRefused
from hosts.connections import connections, controller_id
from hosts.live import announce
from hosts.problems import problem, problem_of, unexpected
from hosts.queries import latest_facts
from hosts.ssh.errors import SshError
from hosts.vault import VaultClosed

MOST_ATTEMPTS = 6
# A cancel holds until the host has said that nothing is left: ten hours of asking, or until somebody forces its end.
MOST_ATTEMPTS_TO_CANCEL = 500
RETRY_SECONDS = 5  # 5, 10, 20, 40, 80: two and a half minutes in all
LONGEST_RETRY_SECONDS = 80
log = logging.getLogger(__name__)
WORKER = system_actor("worker")
# This process, for leases: the same name is never used twice.
OWNER = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


class RunRefused(Exception):
    """The plan cannot be started; `problem` says why and what to do."""

    def __init__(self, *, code: str, message: str, next_step: str) -> None:
        super().__init__(message)
        self.problem = problem(code=code, message=message, next_step=next_step)


def request_run(*, plan: Plan, digest: str, by: Actor, now: datetime) -> Run:
    """Queue exactly the plan whose digest the person saw. Raises RunRefused."""
    if digest != plan.digest:
        raise RunRefused(
            code="PLAN_DIFFERS",
            message=_("The plan you confirmed is not the plan that is stored."),
            next_step=_("Reload the page and read the plan again."),
        )
    try:
        with transaction.atomic():
            taken = Plan.objects.filter(pk=plan.pk, state=Plan.State.OPEN, expires_at__gt=now).update(
                state=Plan.State.TAKEN
            )
            if not taken:
                raise plan_not_open(plan)
            run = Run.objects.create(
                environment_id=plan.environment_id,
                deployment=plan.deployment,
                plan=plan,
                requested_by=by.label,
                requested_at=now,
            )
            record(
                actor=by,
                action=f"run.{plan.kind}",
                subject=plan.deployment,
                after={"run": run.pk, "plan": plan.pk, "digest": plan.digest},
            )
            queue.nudge("deployments.execute_run", run_id=run.pk)
            announce("fleet", f"deployment.{plan.deployment_id}")
    except IntegrityError as error:
        raise RunRefused(
            code="RUN_ACTIVE",
            message=_("Another run of %(name)s is not finished yet.") % {"name": plan.deployment.name},
            next_step=_("Wait for it, or cancel it on its page."),
        ) from error
    return run


def plan_not_open(plan: Plan) -> RunRefused:
    state = Plan.objects.get(pk=plan.pk)
    return RunRefused(
        code="PLAN_NOT_OPEN",
        message=_("This plan can no longer be started: %(state)s.") % {"state": state.get_state_display().lower()},
        next_step=_("Make a new plan."),
    )


def claim_run(run_id: int) -> Run | None:
    """Take the run by compare-and-swap on the database's clock; None when another worker has it."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=Now())
    taken = Run.objects.filter(free, pk=run_id, state__in=[RunState.QUEUED, RunState.RUNNING]).update(
        lease_owner=OWNER,
        lease_until=Now() + timedelta(seconds=settings.RUN_LEASE_SECONDS),
        attempt=F("attempt") + 1,
    )
    if not taken:
        return None
    return Run.objects.select_related("plan", "plan__host", "plan__host__credential", "deployment").get(pk=run_id)


def renew_lease(run: Run) -> None:
    """Raises LeaseLost when another worker has taken over."""
    held = Run.objects.filter(pk=run.pk, lease_owner=OWNER, attempt=run.attempt).update(
        lease_until=Now() + timedelta(seconds=settings.RUN_LEASE_SECONDS)
    )
    if not held:
        raise LeaseLost(str(run.pk))


def execute_run(*, run_id: int, now: datetime) -> None:
    """Claim and carry out a run, if nobody else does. No transaction is open while SSH is in use."""
    run = claim_run(run_id)
    if run is None:
        return
    if run.state == RunState.QUEUED and not move_run(
        run, to=RunState.RUNNING, actor=WORKER.label, now=now, started_at=now
    ):
        return
    try:
        outcome = carry_out(run)
    except LeaseLost:
        log.warning("Run %s was taken over by another worker; leaving it alone.", run_id)
    except (SshError, AgentRefused, VaultClosed) as error:
        end_without_host(run, error)
    except Exception as error:
        finish_run(run, RunState.ERRORED, unexpected(error))
        raise
    else:
        finish_run(run, *conclusion(outcome))


def end_without_host(run: Run, error: SshError | AgentRefused | VaultClosed) -> None:
    """The host could not be asked, or said no to the worker itself: again later, or never."""
    run.refresh_from_db(fields=["cancel_asked_at", "force_asked_at"])
    transient = getattr(error, "transient", False)
    if transient and run.force_asked_at:
        finish_run(run, *forced_end(run, error))
    elif transient and run.attempt < (MOST_ATTEMPTS_TO_CANCEL if run.cancel_asked_at else MOST_ATTEMPTS):
        try_later(run, error)
    else:
        finish_run(run, RunState.FAILED, problem_of(error))


def forced_end(run: Run, error: SshError) -> tuple[RunState, dict | None]:
    """Cancelled only where nothing can have begun; else the run says what it cannot prove."""
    begun = Launch.objects.filter(plan=run.plan).exclude(state__in=[LaunchState.PLANNED, *LAUNCH_TERMINAL])
    count = begun.count()
    if not count:
        return RunState.CANCELLED, None
    return RunState.FAILED, problem(
        code="CANCEL_NOT_PROVEN",
        message=ngettext(
            "%(count)d launch may still run: %(why)s",
            "%(count)d launches may still run: %(why)s",
            count,
        )
        % {"count": count, "why": error.message},
        next_step=_("Once the host answers, its page shows what runs there; plan a stop for it then."),
    )


def try_later(run: Run, error: SshError) -> None:
    """The connection failed, not the plan: leave the run to the next claim, later each time, and say why it waits.

    What the host has begun goes on there; the next attempt adopts it.
    """
    pause = timedelta(seconds=min(RETRY_SECONDS * 2 ** min(run.attempt - 1, 10), LONGEST_RETRY_SECONDS))
    with transaction.atomic():
        Run.objects.filter(pk=run.pk, lease_owner=OWNER, attempt=run.attempt).update(
            lease_owner="", lease_until=Now() + pause, problem=problem_of(error)
        )
        announce(f"run.{run.pk}")


def carry_out(run: Run) -> Outcome:
    if digest_of(bytes(run.plan.intent)) != run.plan.digest:
        return plan_changed(run)
    intent = json.loads(bytes(run.plan.intent))
    with connections.session(run.plan.host) as session:
        return Engine(
            session=session,
            intent=intent,
            preconditions=run.plan.preconditions,
            fence={"controller": controller_id(), "run": str(run.pk), "attempt": fence_attempt(run)},
            listener=WorkerListener(run=run, renew_lease=lambda: renew_lease(run)),
            clock=time,
            limits=Limits(),
            facts_age_s=facts_age(run),
            roots=Roots(model=tuple(run.plan.host.model_roots), vllm=tuple(run.plan.host.vllm_roots)),
            secrets_of=secrets_for,
            resume_of=resume_point,
            leave=database_connections.close_all,
        ).run()


def plan_changed(run: Run) -> PreconditionFailed:
    """The stored bytes are not those whose digest was confirmed: nothing runs."""
    return PreconditionFailed(
        code="PLAN_BYTES_CHANGED",
        message="The stored plan is not the one that was confirmed.",
        next_step="Find out who changed the database; then make a new plan.",
        wanted=run.plan.digest,
        found=digest_of(bytes(run.plan.intent)),
    )


def facts_age(run: Run) -> int:
    """Seconds since the host's facts were read last."""
    newest = latest_facts(run.plan.host)
    return int((timezone.now() - newest.taken_at).total_seconds()) if newest else 10**9


def fence_attempt(run: Run) -> int:
    """Grows with every claim of every run, so that a paused worker's request is always the lower one."""
    return run.pk * 1000 + run.attempt


def conclusion(outcome: Outcome) -> tuple[RunState, dict | None]:
    if isinstance(outcome, Done):
        return RunState.SUCCEEDED, None
    if isinstance(outcome, Cancelled):
        return RunState.CANCELLED, None
    state = RunState.PRECONDITION_FAILED if isinstance(outcome, PreconditionFailed) else RunState.FAILED
    return state, problem_of(outcome)


def finish_run(run: Run, state: RunState, found: dict | None) -> None:
    """End the run, with its audit entry; whatever it planned and did not start is given back.

    Only the worker that holds it: one that was paused and overtaken has nothing to say about it any more.
    """
    now = timezone.now()
    with transaction.atomic():
        if not Run.objects.select_for_update().filter(pk=run.pk, lease_owner=OWNER, attempt=run.attempt).exists():
            log.warning("Run %s was taken over by another worker; its end is not ours to tell.", run.pk)
            return
        if not move_run(
            run, to=state, actor=WORKER.label, now=now, reason=found, ended_at=now, problem=found, lease_until=None
        ):
            return
        record(
            actor=WORKER,
            action="run.end",
            subject=run.deployment,
            after={"run": run.pk, "state": state.value, "code": (found or {}).get("code")},
        )
        release_unstarted(run, by=WORKER, now=now)
        run.steps.filter(state="running").update(state="failed", ended_at=now)
        run.steps.filter(state="waiting").update(state="skipped")


def release_unstarted(run: Run, *, by: Actor, now: datetime) -> None:
    """Launches that were planned and never asked for."""
    for launch in Launch.objects.filter(plan=run.plan, state=LaunchState.PLANNED):
        move_launch(
            launch, to=LaunchState.STOPPED, actor=by.label, now=now, reason={"code": "NOT_STARTED"}, ended_at=now
        )
        ledger.release(launch, now=now)


def waiting_runs():
    """Runs that no worker holds."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=Now())
    return Run.objects.filter(free, state__in=[RunState.QUEUED, RunState.RUNNING])
