"""A restart in order on a simulated host: who serves meanwhile, what passes on, and where it ends when one fails."""

import json
import threading
import time

import pytest
from django.db import connection
from django.utils import timezone

from deployments import ledger
from deployments.models import Event, Launch, Plan, PortReservation, Reservation, Run
from deployments.planning.refusals import Refused
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from deployments.planning.spec_yaml import spec_to_mapping
from deployments.services.cancelling import request_cancel
from deployments.services.plans import drop_plan, make_restart_plan, make_stop_plan
from deployments.services.revisions import add_revision, spec_of
from deployments.services.runs import request_run
from hosts.models import Host
from tests.fleet.conftest import ANN
from tests.fleet.test_several_instances import execute, start_again
from tests.fleet.test_start_and_stop import plan_start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(enrol) -> Host:
    return enrol("gpu-a")


@pytest.fixture
def started(host) -> Run:
    run = execute(plan_start(host, instances=3))
    assert run.state == "succeeded", run.problem
    return run


def plan_restart(run: Run, **values) -> Plan:
    made = make_restart_plan(
        deployment=run.deployment,
        revision=run.deployment.revisions.first(),
        allow_code_loading=False,
        by=ANN,
        now=timezone.now(),
        **values,
    )
    assert isinstance(made, Plan), made
    return made


def revise(run: Run, **changes) -> None:
    spec = parse_spec({**spec_to_mapping(spec_of(run.plan.revision)), **changes})
    assert isinstance(spec, DeploymentSpec), spec
    add_revision(deployment=run.deployment, spec=spec, by=ANN, now=timezone.now())


def serving(run: Run) -> list[int]:
    """The slots that serve, oldest launch first."""
    rows = Launch.objects.filter(deployment=run.deployment, state="ready").order_by("created_at")
    return sorted(rows.values_list("instance__slot", flat=True))


def held(run: Run) -> dict[str, int]:
    launches = ledger.live_launches(run.deployment)
    return {"ports": launches.count(), "bytes": Reservation.objects.filter(until__isnull=True).count()}


def moments(run: Run, state: str) -> list:
    events = Event.objects.filter(deployment=run.deployment, after=state).order_by("at").select_related("launch")
    return [event.at for event in events]


class TestARestart:
    def test_replaces_all_one_after_another_on_their_ports_and_devices(self, started):
        before = list(Launch.objects.filter(plan=started.plan).order_by("instance__slot"))
        run = execute(plan_restart(started))
        assert run.state == "succeeded", run.problem
        after = list(Launch.objects.filter(plan=run.plan).order_by("instance__slot"))
        assert [(new.port, new.replaces_id) for new in after] == [(old.port, old.pk) for old in before]
        assert [new.ranks.get().device_id for new in after] == [old.ranks.get().device_id for old in before]
        assert {launch.state for launch in after} == {"ready"}
        stopped = moments(started, "stopped")
        ready = moments(started, "ready")[3:]
        assert stopped[0] < ready[0] < stopped[1] < ready[1] < stopped[2] < ready[2]
        assert held(started) == {"ports": 3, "bytes": 3}

    def test_brings_a_new_revision_up_and_its_bytes_into_the_ledger(self, started):
        revise(started, kv_cache_memory_bytes="2GiB")
        run = execute(plan_restart(started))
        assert run.state == "succeeded", run.problem
        planned = {e["launch_id"]: e["reserved_bytes"] for e in json.loads(bytes(run.plan.intent))["launches"]}
        for launch in Launch.objects.filter(plan=run.plan):
            assert launch.revision.number == 2
            rows = launch.reservations.filter(until__isnull=True).values_list("device__uuid", "bytes")
            assert dict(rows) == planned[str(launch.pk)]

    def test_of_one_instance_leaves_the_others_alone(self, started):
        chosen = Launch.objects.get(plan=started.plan, instance__slot=1)
        run = execute(plan_restart(started, launches=[chosen]))
        assert run.state == "succeeded", run.problem
        states = Launch.objects.filter(plan=started.plan).order_by("instance__slot").values_list("state", flat=True)
        assert list(states) == ["ready", "stopped", "ready"]
        assert serving(started) == [0, 1, 2]

    def test_takes_several_at_a_time_where_asked(self, started):
        run = execute(plan_restart(started, at_a_time=3))
        assert run.state == "succeeded", run.problem
        assert json.loads(bytes(run.plan.intent))["order"]["side_by_side"] == 3
        stopped, ready = moments(started, "stopped"), moments(started, "ready")[3:]
        assert max(stopped) < min(ready)

    def test_ends_where_one_does_not_come_up_and_leaves_the_rest_serving(self, started, fleet):
        fleet["gpu-a"].fail_next("out_of_memory")
        run = execute(plan_restart(started))
        assert run.state == "failed"
        assert run.problem["message"].startswith("0 of 3 instances were restarted, 2 were left as they are.")
        assert serving(started) == [1, 2]
        assert set(Launch.objects.filter(plan=run.plan).values_list("state", flat=True)) == {"failed", "stopped"}
        assert held(started) == {"ports": 2, "bytes": 2}

    def test_ends_where_one_comes_up_and_does_not_serve_as_planned(self, started, fleet):
        fleet["gpu-a"].fail_next("wrong_name")
        run = execute(plan_restart(started))
        assert (run.state, run.problem["code"]) == ("failed", "SERVED_NAME_MISMATCH")
        assert serving(started) == [1, 2]
        assert Launch.objects.get(plan=run.plan, instance__slot=0).state == "degraded"

    def test_can_be_tried_again_after_that_and_takes_the_failed_slot_along_by_a_start(self, started, fleet):
        fleet["gpu-a"].fail_next("out_of_memory")
        execute(plan_restart(started))
        assert start_again(started).state == "succeeded"
        assert execute(plan_restart(started)).state == "succeeded"
        assert serving(started) == [0, 1, 2]


class TestItsPlan:
    def test_holds_only_what_those_before_it_do_not_hold(self, started):
        plan = plan_restart(started)
        assert not PortReservation.objects.filter(launch__plan=plan).exists()
        assert set(Reservation.objects.filter(launch__plan=plan).values_list("bytes", flat=True)) == {0}
        revise(started, kv_cache_memory_bytes="2GiB")
        execute(plan_restart(started))
        revise(started, kv_cache_memory_bytes="3GiB")
        larger = plan_restart(started)
        assert set(Reservation.objects.filter(launch__plan=larger).values_list("bytes", flat=True)) == {2**30}

    def test_leaves_nothing_held_when_it_is_dropped(self, started):
        before = held(started)
        plan = plan_restart(started)
        drop_plan(plan=plan, by=ANN, now=timezone.now())
        assert held(started) == before
        assert serving(started) == [0, 1, 2]

    def test_gets_the_place_of_one_that_ended_before_its_run(self, started):
        plan = plan_restart(started)
        gone = Launch.objects.get(plan=started.plan, instance__slot=0)
        ledger.release(gone, now=timezone.now())
        heir = Launch.objects.get(plan=plan, instance__slot=0)
        assert heir.ports.get(until__isnull=True).port == gone.port
        assert heir.reservations.get(until__isnull=True).bytes > 0

    def test_is_refused_where_nothing_runs(self, started):
        execute(make_stop_plan(deployment=started.deployment, by=ANN, now=timezone.now()))
        made = make_restart_plan(
            deployment=started.deployment,
            revision=started.plan.revision,
            allow_code_loading=False,
            by=ANN,
            now=timezone.now(),
        )
        assert isinstance(made, Refused)
        assert [reason.code for reason in made.reasons] == ["NOTHING_TO_RESTART"]


class TestCancelled:
    def test_it_stops_what_it_is_starting_and_touches_no_more(self, started, fleet):
        fleet["gpu-a"].fail_next("slow_load")
        plan = plan_restart(started)
        thread = threading.Thread(target=cancel_once_started, args=(plan.pk,))
        thread.start()
        request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        thread.join()
        assert Run.objects.get(plan=plan).state == "cancelled"
        assert serving(started) == [1, 2]
        assert held(started) == {"ports": 2, "bytes": 2}


def cancel_once_started(plan_id: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and not Launch.objects.filter(plan_id=plan_id, state="starting").exists():
        time.sleep(0.02)
    request_cancel(run=Run.objects.get(plan_id=plan_id), by=ANN, now=timezone.now())
    connection.close()
