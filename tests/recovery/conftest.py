"""A simulated fleet whose runs the test carries out itself, as a worker that can be killed, paused or doubled."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from deployments.models import Launch, Plan, PortReservation, Reservation, Run
from deployments.services import runs
from deployments.services.plans import make_stop_plan
from deployments.services.runs import execute_run, request_run
from hosts.models import Host
from tests.fleet.conftest import ANN, _tasks, credential, enrol, environment, fleet, propose  # noqa: F401
from tests.fleet.test_start_and_stop import plan_start

LONG_AGO = timedelta(minutes=5)


class Killed(BaseException):
    """Like SIGKILL: nothing of the worker's own clean-up runs."""


@pytest.fixture
def host(enrol) -> Host:  # noqa: F811
    return enrol("gpu-a")


@pytest.fixture
def nudges_lost(host, monkeypatch):
    """No nudge arrives: a run is carried out when the test says so."""
    monkeypatch.setattr("hosts.queue.send", lambda task, arguments: None)


@pytest.fixture
def queued(host, nudges_lost) -> Callable[..., Run]:
    def queue(**changes) -> Run:
        plan = plan_start(host, **changes)
        assert isinstance(plan, Plan), plan
        return request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())

    return queue


@pytest.fixture
def queued_stop(nudges_lost) -> Callable[[Run], Run]:
    def queue(started: Run) -> Run:
        plan = make_stop_plan(deployment=started.deployment, by=ANN, now=timezone.now())
        assert isinstance(plan, Plan), plan
        return request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())

    return queue


@pytest.fixture
def work(monkeypatch) -> Callable[..., Run]:
    """Carry a run out as the worker of this name; an earlier worker's lease is over."""

    def carry_out(run: Run, *, owner: str = "worker:1") -> Run:
        monkeypatch.setattr(runs, "OWNER", owner)
        Run.objects.filter(pk=run.pk, lease_until__isnull=False).update(lease_until=timezone.now() - LONG_AGO)
        execute_run(run_id=run.pk, now=timezone.now())
        return Run.objects.get(pk=run.pk)

    return carry_out


def launch_of(run: Run) -> Launch:
    return Launch.objects.get(plan=run.plan)


def held() -> tuple[int, int]:
    """How many ports and how many device reservations are spoken for."""
    ports = PortReservation.objects.filter(until__isnull=True).count()
    return ports, Reservation.objects.filter(until__isnull=True).count()


def servers_on(machine) -> list[str]:
    """Titles of API servers that live on a simulated host."""
    return [p.title for p in machine if "vllm serve" in p.title.lower() and "supervise" not in p.title]
