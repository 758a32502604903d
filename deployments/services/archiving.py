"""Deployments that are done with: out of the lists, with their history kept."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from accounts.actors import Actor
from audit.record import record
from deployments import ledger
from deployments.models import Deployment
from deployments.planning.refusals import Refusal, RefusalCode, Refused
from deployments.planning.states import RUN_ACTIVE, LaunchState
from deployments.services.plans import drop_open_plans
from hosts.live import announce


@transaction.atomic
def archive(*, deployment: Deployment, by: Actor, now: datetime) -> Refused | None:
    """Take it out of the lists; refused while something of it runs or holds memory."""
    Deployment.objects.select_for_update().get(pk=deployment.pk)
    if is_in_use(deployment):
        return Refused(reasons=(in_use(deployment),))
    if Deployment.objects.filter(pk=deployment.pk, archived_at__isnull=True).update(archived_at=now):
        drop_open_plans(deployment, by=by, now=now)
        record(actor=by, action="deployment.archive", subject=deployment)
        announce("fleet", f"deployment.{deployment.pk}")
    return None


@transaction.atomic
def restore(*, deployment: Deployment, by: Actor) -> None:
    if Deployment.objects.filter(pk=deployment.pk, archived_at__isnull=False).update(archived_at=None):
        record(actor=by, action="deployment.restore", subject=deployment)
        announce("fleet", f"deployment.{deployment.pk}")


def is_in_use(deployment: Deployment) -> bool:
    live = ledger.live_launches(deployment).exclude(state=LaunchState.PLANNED)
    runs = deployment.runs.filter(state__in=[state.value for state in RUN_ACTIVE])
    return live.exists() or runs.exists()


def in_use(deployment: Deployment) -> Refusal:
    return Refusal(
        code=RefusalCode.DEPLOYMENT_IN_USE,
        message=_("Something of %(name)s still runs.") % {"name": deployment.name},
        next_step=_("Stop it or sweep it first; then archive it."),
    )
