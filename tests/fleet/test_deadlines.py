"""vLLM waits for ever (its issue 48031): our deadlines end a start that hangs, and a stop waits for the memory."""

import pytest
from django.utils import timezone

from deployments.execution.limits import PHASES, Limits
from deployments.execution.stop import held_by
from deployments.models import Launch, Reservation, Run
from deployments.planning.phases import PHASE_ORDER, Phase
from deployments.services import runs
from deployments.services.plans import make_stop_plan
from deployments.services.runs import request_run
from tests.fleet.conftest import ANN
from tests.fleet.test_start_and_stop import plan_start, start

GIB = 2**30


@pytest.fixture
def limits(monkeypatch):
    def set_limits(**values) -> None:
        monkeypatch.setattr(runs, "Limits", lambda: Limits(tick=0.05, **values))

    return set_limits


def execute(plan) -> Run:
    run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
    run.refresh_from_db()
    return run


@pytest.mark.django_db(transaction=True)
class TestStartThatHangs:
    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"phases": {Phase.CONFIG: 0.5}}, "It stayed in one phase for"),
            ({"start": 0.6}, "Not ready after"),
            ({"quiet": 0.5}, "Its log said nothing for"),
        ],
        ids=["in a phase", "as a whole", "in silence"],
    )
    def test_is_ended_with_its_phase_named_and_leaves_nothing(self, enrol, fleet, limits, values, words):
        host = enrol("gpu-a")
        fleet["gpu-a"].fail_next("silent")
        limits(**values)
        run = execute(plan_start(host))
        assert (run.state, run.problem["code"]) == ("failed", "START_TIMED_OUT")
        assert run.problem["message"].startswith(words)
        assert not [process.title for process in fleet["gpu-a"].machine if "vllm" in process.title.lower()]
        assert not Reservation.objects.filter(until__isnull=True).exists()

    def test_is_not_ended_where_it_is_only_slow(self, enrol, fleet, limits):
        host = enrol("gpu-a")
        fleet["gpu-a"].fail_next("slow_load")
        assert execute(plan_start(host)).state == "succeeded"


class TestDeadlines:
    def test_are_there_for_every_phase_of_a_start(self):
        without = {Phase.LOADING, Phase.LISTENING, Phase.ENDING}
        assert set(PHASES) == set(PHASE_ORDER) - without

    def test_of_loading_grow_with_the_weights(self):
        limits = Limits()
        assert limits.of_phase(Phase.LOADING, weights=GIB) == 600
        assert limits.of_phase(Phase.LOADING, weights=140 * GIB) > 5000


class TestMemory:
    DEVICES = [
        {"uuid": "GPU-0", "processes": [{"pid": 1, "used": 5}, {"pid": 2, "used": 7}]},
        {"uuid": "GPU-1", "processes": [{"pid": 1, "used": None}]},
    ]

    def test_held_by_some_processes_is_told_by_device(self):
        assert held_by(frozenset({1, 9}), self.DEVICES) == {"GPU-0": 5}
        assert held_by(frozenset({9}), self.DEVICES) == {}

    @pytest.mark.django_db(transaction=True)
    def test_that_does_not_come_back_fails_the_stop_in_a_sentence(self, enrol, monkeypatch, limits):
        run = start(enrol("gpu-a"))
        launch = Launch.objects.get(plan=run.plan)
        monkeypatch.setattr("deployments.execution.stop.held_by", lambda *_: {"GPU-0": 3 * GIB})
        limits(memory_back=0.1, probe_pause=0.05)
        stopped = execute(make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now()))
        launch.refresh_from_db()
        assert (stopped.state, stopped.problem["code"]) == ("failed", "MEMORY_NOT_BACK")
        assert "3.00 GiB of GPU-0" in stopped.problem["message"]
        assert launch.state == "stopped"
