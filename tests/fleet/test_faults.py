"""Each way in which hosts and vLLM go wrong, through the whole application: the right state, a code, nothing left behind."""

import json

import pytest
from django.utils import timezone

from deployments.models import Launch, Plan, PortReservation, Reservation, Run
from deployments.services import runs
from deployments.services.plans import make_sweep_plan
from deployments.services.runs import execute_run, request_run
from hosts.connections import connections
from hosts.models import Host
from tests.fleet.conftest import ANN, eventually
from tests.fleet.test_lost_workers import watched
from tests.fleet.test_several_instances import execute, stop_all
from tests.fleet.test_start_and_stop import plan_start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(enrol) -> Host:
    return enrol("gpu-a")


@pytest.fixture
def machine(fleet):
    return fleet["gpu-a"].machine


def nothing_left(machine) -> bool:
    processes = [process.title for process in machine if "vllm" in process.title.lower()]
    held = [gpu.index for gpu in machine.gpus if gpu.held]
    reserved = Reservation.objects.filter(until__isnull=True).exists()
    ports = PortReservation.objects.filter(until__isnull=True).exists()
    return not (processes or held or reserved or ports)


class TestAStart:
    @pytest.mark.parametrize(
        ("fault", "code", "words"),
        [
            ("port_taken", "PORT_TAKEN", "already taken"),
            ("disk_full", "DISK_FULL", "disk of the host is full"),
            ("out_of_memory", "CUDA_OUT_OF_MEMORY", "memory"),
        ],
    )
    def test_that_fails_is_named_and_leaves_nothing(self, host, fleet, machine, fault, code, words):
        fleet["gpu-a"].fail_next(fault)
        run = execute(plan_start(host))
        assert (run.state, run.problem["code"]) == ("failed", code)
        assert words in run.problem["message"]
        assert run.problem["next_step"]
        assert Launch.objects.get(plan=run.plan).cause["code"] == code
        assert nothing_left(machine)

    def test_that_serves_another_name_is_degraded_and_both_names_are_told(self, host, fleet):
        fleet["gpu-a"].fail_next("wrong_name")
        run = execute(plan_start(host))
        launch = Launch.objects.get(plan=run.plan)
        assert (run.state, run.problem["code"]) == ("failed", "SERVED_NAME_MISMATCH")
        assert launch.state == "degraded"
        assert "another-model" in run.problem["message"]
        assert launch.served_name in run.problem["message"]

    def test_on_a_full_disk_is_not_even_begun(self, host, fleet, machine):
        fleet["gpu-a"].fill_disk()
        run = execute(plan_start(host))
        assert (run.state, run.problem["code"]) == ("precondition_failed", "DISK_FULL")
        assert nothing_left(machine)

    def test_whose_api_server_dies_is_an_orphan_and_is_swept(self, host, fleet, machine, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        fleet["gpu-a"].fail_next("killed_parent")
        run = execute(plan_start(host))
        with watched(host):
            eventually(lambda: Launch.objects.filter(plan=run.plan, state="orphaned").exists())
        assert machine.gpus_of(None)[0].held or machine.gpus_of(None)[1].held
        swept = execute(make_sweep_plan(deployment=run.deployment, by=ANN, now=timezone.now()))
        assert swept.state == "succeeded", swept.problem
        assert nothing_left(machine)


class TestARendezvousThatIsTaken:
    def test_is_tried_once_more_under_the_second_id_on_the_same_port(self, host, fleet, machine):
        fleet["gpu-a"].fail_next("rendezvous_taken")
        run = execute(plan_start(host))
        assert run.state == "succeeded", run.problem
        (entry,) = json.loads(bytes(run.plan.intent))["launches"]
        first = Launch.objects.get(pk=entry["launch_id"])
        second = Launch.objects.get(pk=entry["retry"]["launch_id"])
        assert (first.state, first.cause["code"]) == ("failed", "RENDEZVOUS_PORT_TAKEN")
        assert (second.state, second.port, second.replaces) == ("ready", first.port, first)
        assert second.measured_overhead == first.measured_overhead or second.measured_overhead
        assert stop_all(run).state == "succeeded"
        assert nothing_left(machine)

    def test_is_not_tried_a_third_time(self, host, fleet, machine):
        for _ in range(2):
            fleet["gpu-a"].fail_next("rendezvous_taken")
        run = execute(plan_start(host))
        assert (run.state, run.problem["code"]) == ("failed", "RENDEZVOUS_PORT_TAKEN")
        assert Launch.objects.filter(plan=run.plan, state="failed").count() == 2
        assert nothing_left(machine)

    def test_of_one_among_several_does_not_hold_up_the_others(self, host, fleet):
        fleet["gpu-a"].fail_next("rendezvous_taken")
        run = execute(plan_start(host, instances=3))
        assert run.state == "succeeded", run.problem
        assert Launch.objects.filter(plan=run.plan, state="ready").count() == 3


@pytest.fixture
def patient(monkeypatch):
    """Work on a run until it has ended, as beat's nudges do; the pauses between attempts are left out."""
    monkeypatch.setattr(runs, "RETRY_SECONDS", 0)

    def work(plan: Plan) -> Run:
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        for _ in range(runs.MOST_ATTEMPTS):
            run.refresh_from_db()
            if run.state not in ("queued", "running"):
                break
            execute_run(run_id=run.pk, now=timezone.now())
        run.refresh_from_db()
        return run

    return work


class TestALink:
    def test_that_is_reset_again_and_again_is_tried_later_and_once_each_time(self, host, fleet, patient):
        connections.close_all()
        before = fleet["gpu-a"].link.connects
        fleet["gpu-a"].reset(3)
        run = patient(plan_start(host))
        assert run.state == "succeeded", run.problem
        assert fleet["gpu-a"].link.connects - before <= 4

    def test_that_is_reset_for_good_fails_with_its_own_code_and_nothing_begun(self, host, fleet, machine, patient):
        connections.close_all()
        fleet["gpu-a"].reset(10_000)
        run = patient(plan_start(host))
        assert run.state == "failed"
        assert run.problem["code"] in (
            "CONNECTION_LOST",
            "CONNECT_FAILED",
            "HOST_UNREACHABLE",
            "NOT_SSH",
            "TOO_MANY_CONNECTIONS",
        )
        assert run.attempt == runs.MOST_ATTEMPTS
        assert nothing_left(machine)

    def test_that_falls_silent_in_a_start_loses_nothing(self, host, fleet, patient, monkeypatch):
        monkeypatch.setattr("hosts.agent_session.SILENCE_MAX_S", 1.5)
        plan = plan_start(host)
        silent = []

        def fall_silent(listener, launch_id, started, *, told=runs.WorkerListener.launched):
            told(listener, launch_id, started)
            if not silent:
                silent.append(launch_id)
                fleet["gpu-a"].go_silent(3.0)

        monkeypatch.setattr(runs.WorkerListener, "launched", fall_silent)
        run = patient(plan)
        assert (run.state, len(silent)) == ("succeeded", 1), run.problem
        assert run.attempt > 1
        assert Launch.objects.filter(plan=plan, state="ready").count() == 1
        servers = [process.title for process in fleet["gpu-a"].machine if "vllm serve" in process.title]
        assert len(servers) == 1
