"""Fetching deployments, runs and launches, authorised in the same step; and the right to follow a topic."""

from uuid import UUID

from django.db.models import QuerySet

from accounts.access import environments_with, fetch, visible
from deployments.models import Deployment, Launch, LogStream, Plan, Run
from hosts.models import Host

SEE = "deployments.view_deployment"
NUMBER_DIGITS = 18


def deployments_for(user) -> QuerySet[Deployment]:
    return visible(Deployment.objects.select_related("environment"), user, SEE)


def launches_for(user) -> QuerySet[Launch]:
    return visible(Launch.objects.select_related("instance", "deployment", "host", "revision"), user, SEE)


def deployment_to(user, pk: int, perm: str = SEE) -> Deployment:
    return fetch(Deployment.objects.select_related("environment"), user, see=SEE, do=perm, pk=pk)


def plan_to(user, pk: int, perm: str = SEE) -> Plan:
    return fetch(
        Plan.objects.select_related("deployment", "revision", "host", "environment"), user, see=SEE, do=perm, pk=pk
    )


def run_to_see(user, pk: int) -> Run:
    return fetch(Run.objects.select_related("deployment", "plan", "plan__host", "environment"), user, see=SEE, pk=pk)


def run_to(user, pk: int, perm: str) -> Run:
    return fetch(Run.objects.select_related("deployment", "plan"), user, see=SEE, do=perm, pk=pk)


def launch_to_see(user, pk) -> Launch:
    return fetch(
        Launch.objects.select_related("instance", "deployment", "host", "revision", "environment"), user, see=SEE, pk=pk
    )


def stream_to_read(user, launch_id) -> LogStream | None:
    """The log stream, or None where there is none this user may read."""
    stream = LogStream.objects.select_related("launch").filter(launch_id=launch_id).first()
    if stream is None or not user.has_perm("deployments.read_log", stream.launch):
        return None
    return stream


def may_follow(user, topic: str) -> bool:
    """May this user be told that the topic changed? Strangers are told nothing, not even that it exists."""
    kind, _, key = topic.partition(".")
    if kind == "fleet":
        return environments_with(user, "hosts.view_host").exists()
    model, perm = FOLLOWED[kind]
    if not (is_uuid(key) if kind == "launch" else key.isdigit() and len(key) <= NUMBER_DIGITS):
        return False
    row = model.objects.filter(pk=key).first()
    return row is not None and user.has_perm(perm, row)


def is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


FOLLOWED = {
    "host": (Host, "hosts.view_host"),
    "deployment": (Deployment, SEE),
    "run": (Run, SEE),
    "launch": (Launch, SEE),
}
