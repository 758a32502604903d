"""A worker killed in the middle of a restart: the next one goes on, and nobody is stopped or started twice."""

import pytest
from django.utils import timezone

from deployments.models import Event, Launch, Plan, Run
from deployments.services.plans import make_restart_plan
from deployments.services.runs import request_run
from tests.fleet.conftest import ANN
from tests.recovery.conftest import Killed, held, servers_on
from tests.recovery.test_killed_worker import kill_at  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = ["stopping", "stopped", "launching", "launched", "verifying", "verified"]


@pytest.fixture
def queued_restart(queued, work) -> Run:
    """Two instances serve; the restart of both waits for a worker."""
    started = work(queued(instances=2))
    assert started.state == "succeeded", started.problem
    plan = make_restart_plan(
        deployment=started.deployment,
        revision=started.plan.revision,
        allow_code_loading=False,
        by=ANN,
        now=timezone.now(),
    )
    assert isinstance(plan, Plan), plan
    return request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_the_next_worker_ends_the_restart(step, moment, kill_at, queued_restart, work, fleet):  # noqa: F811
    kill_at(step, moment)
    with pytest.raises(Killed):
        work(queued_restart)
    run = work(queued_restart, owner="worker:2")
    assert run.state == "succeeded", run.problem
    assert set(Launch.objects.filter(plan=run.plan).values_list("state", flat=True)) == {"ready"}
    assert set(Launch.objects.exclude(plan=run.plan).values_list("state", flat=True)) == {"stopped"}
    assert len(servers_on(fleet["gpu-a"].machine)) == 2
    assert held() == (2, 2)
    for launch in Launch.objects.all():
        moves = Event.objects.filter(launch=launch).values_list("after", flat=True)
        assert len(set(moves)) == len(moves), list(moves)
