"""Several instances on the GPUs of one simulated host, whose memory is divided by vLLM's own rules."""

import json

import pytest
from django.utils import timezone

from deployments.models import Event, Launch, Plan, PortReservation, Reservation, Run
from deployments.services.plans import make_start_plan, make_stop_plan
from deployments.services.runs import request_run
from hosts.models import Host
from tests.fleet.conftest import ANN
from tests.fleet.test_start_and_stop import plan_start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(enrol) -> Host:
    return enrol("gpu-a")


def execute(plan: Plan) -> Run:
    assert isinstance(plan, Plan), plan
    run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
    run.refresh_from_db()
    return run


def stop_all(run: Run) -> Run:
    return execute(make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now()))


def start_again(run: Run) -> Run:
    """Plans with the facts of before the first run: what that has stopped since is not taken for somebody else's."""
    plan = make_start_plan(
        deployment=run.deployment,
        revision=run.plan.revision,
        allow_code_loading=False,
        by=ANN,
        now=timezone.now(),
    )
    return execute(plan)


def moments(run: Run, state: str) -> dict[int, object]:
    """When each slot came to this state."""
    events = Event.objects.filter(launch__plan=run.plan, after=state).select_related("launch__instance")
    return {event.launch.instance.slot: event.at for event in events}


def caches(run: Run) -> list[int]:
    return [launch.progress["kv_tokens"] for launch in Launch.objects.filter(plan=run.plan)]


class TestSeveralInstances:
    def test_of_a_first_start_follow_their_leader_and_each_has_the_planned_cache(self, host):
        # Eight, where the host's 32 cores carry six at a time.
        run = execute(plan_start(host, instances=8))
        assert run.state == "succeeded", run.problem
        planned = {launch["expected"]["kv_tokens"] for launch in json.loads(bytes(run.plan.intent))["launches"]}
        assert set(caches(run)) == planned
        asked = moments(run, "launching")
        first, *others = [asked[slot] for slot in sorted(asked)]
        leader = Launch.objects.get(plan=run.plan, instance__slot=0)
        ready = next(seen["at"] for seen in leader.progress["seen"] if seen["phase"] == "engine_ready")
        assert first.isoformat() < ready <= min(others).isoformat()

    def test_that_the_host_carries_all_at_once_do_not_wait_for_a_first_one(self, host):
        run = execute(plan_start(host, instances=4))
        assert run.state == "succeeded", run.problem
        assert max(moments(run, "launching").values()) < min(moments(run, "ready").values())
        planned = {launch["expected"]["kv_tokens"] for launch in json.loads(bytes(run.plan.intent))["launches"]}
        assert set(caches(run)) == planned

    def test_of_a_later_start_do_not_wait_for_each_other(self, host):
        first = execute(plan_start(host, instances=4))
        assert stop_all(first).state == "succeeded"
        run = start_again(first)
        assert run.state == "succeeded", run.problem
        assert max(moments(run, "launching").values()) < min(moments(run, "ready").values())
        assert len(set(caches(run))) == 1

    def test_teach_the_next_plan_what_they_hold(self, host):
        first = execute(plan_start(host, instances=4))
        held = set(Launch.objects.filter(plan=first.plan).values_list("measured_overhead", flat=True))
        assert len(held) == 1
        stop_all(first)
        run = start_again(first)
        launches = json.loads(bytes(run.plan.intent))["launches"]
        assert {launch["memory"]["runtime"] + launch["memory"]["graphs"] for launch in launches} == held
        assert run.state == "succeeded"
        for launch in Launch.objects.filter(plan=run.plan):
            (size,) = [sum((p["device_memory"] or {}).values()) for p in launch.processes if p["role"] == "engine_core"]
            memory = next(item["memory"] for item in launches if item["launch_id"] == str(launch.pk))
            assert memory["low"] <= size <= memory["high"]

    def test_are_stopped_together_and_leave_nothing(self, host, fleet):
        run = stop_all(execute(plan_start(host, instances=6)))
        assert run.state == "succeeded"
        assert not [process.title for process in fleet["gpu-a"].machine if "vllm" in process.title.lower()]
        assert not Reservation.objects.filter(until__isnull=True).exists()
        assert not PortReservation.objects.filter(until__isnull=True).exists()

    def test_go_on_where_one_fails_and_the_run_counts_them(self, host, fleet):
        fleet["gpu-a"].fail_next("out_of_memory")
        run = execute(plan_start(host, instances=4))
        assert run.state == "failed"
        assert run.problem["message"].startswith("3 of 4 instances serve.")
        states = sorted(Launch.objects.filter(plan=run.plan).values_list("state", flat=True))
        assert states == ["failed", "ready", "ready", "ready"]
