"""A worker dies or loses its connection at every step: one start per launch, nothing forgotten, the run ends right."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from deployments.execution.listener import LeaseLost
from deployments.models import Launch, PortReservation, Reservation, Run
from deployments.planning.states import LaunchState
from deployments.services import runs
from deployments.services.cancelling import request_cancel
from deployments.services.listening import WorkerListener
from deployments.services.observing import found_empty, found_exited, judge_missing, unattended
from deployments.services.plans import make_stop_plan
from deployments.services.runs import execute_run, request_run
from deployments.watching import Watcher
from hosts.ssh.errors import ConnectionLost
from tests.fleet.conftest import ANN, eventually
from tests.fleet.test_start_and_stop import plan_start, start

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = ["launching", "launched", "log", "progress", "verifying", "verified"]


class Dies(Exception):
    """The worker is gone in the middle of a step."""


@pytest.fixture
def host(enrol):
    return enrol("gpu-a")


@pytest.fixture
def queued(host, monkeypatch):
    """A run that no worker has claimed yet."""
    monkeypatch.setattr("hosts.queue.send", lambda *_: None)
    plan = plan_start(host)
    return request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())


def lose_worker(monkeypatch, step: str, *, after: bool) -> list[int]:
    """The next worker dies before (or after) it has written down this step; the ones after it live."""
    whole = getattr(WorkerListener, step)
    left = [1]

    def die(self, *args, **kwargs):
        if not left:
            return whole(self, *args, **kwargs)
        left.clear()
        if after:
            whole(self, *args, **kwargs)
        raise Dies(step)

    monkeypatch.setattr(WorkerListener, step, die)
    return left


def leave_behind(run: Run, monkeypatch) -> None:
    """Execute as a worker that dies: no row says so, and its lease is still there."""
    monkeypatch.setattr(runs, "finish_run", lambda *_: None)
    with pytest.raises(Dies):
        execute_run(run_id=run.pk, now=timezone.now())
    monkeypatch.undo()


def next_worker(run: Run, monkeypatch) -> Run:
    """Its lease runs out, and another process claims the run."""
    Run.objects.filter(pk=run.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    monkeypatch.setattr(runs, "OWNER", "another:process")
    execute_run(run_id=run.pk, now=timezone.now())
    run.refresh_from_db()
    return run


def leaders(fleet) -> list[str]:
    return [process.title for process in fleet["gpu-a"].machine if "vllm serve" in process.title]


class TestLostWorker:
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("step", STEPS)
    def test_the_next_one_adopts_what_runs_and_starts_nothing_twice(self, queued, fleet, monkeypatch, step, after):
        monkeypatch.setattr("hosts.queue.send", lambda *_: None)
        lose_worker(monkeypatch, step, after=after)
        leave_behind(queued, monkeypatch)
        run = next_worker(queued, monkeypatch)
        launch = Launch.objects.get(plan=run.plan)
        assert (run.state, launch.state, run.attempt) == ("succeeded", "ready", 2), run.problem
        assert len(leaders(fleet)) == 1
        assert PortReservation.objects.filter(until__isnull=True).count() == 1

    def test_a_claimed_run_is_left_alone_until_its_lease_ends(self, queued, monkeypatch):
        lose_worker(monkeypatch, "launched", after=True)
        leave_behind(queued, monkeypatch)
        monkeypatch.setattr(runs, "OWNER", "another:process")
        execute_run(run_id=queued.pk, now=timezone.now())
        queued.refresh_from_db()
        assert (queued.state, queued.attempt) == ("running", 1)

    def test_a_paused_worker_that_wakes_up_late_writes_nothing(self, queued, monkeypatch):
        """It finds that its lease is another's, and leaves without touching the row."""

        def taken_over(self):
            raise LeaseLost(str(self.run.pk))

        monkeypatch.setattr(WorkerListener, "cancelled", taken_over)
        execute_run(run_id=queued.pk, now=timezone.now())
        queued.refresh_from_db()
        assert queued.state == "running"

    def test_two_workers_at_the_same_moment_make_one_start(self, queued, fleet):
        def work():
            execute_run(run_id=queued.pk, now=timezone.now())
            connection.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        queued.refresh_from_db()
        assert (queued.state, queued.attempt) == ("succeeded", 1)
        assert len(leaders(fleet)) == 1


class TestLostConnection:
    def test_is_tried_again_later_and_says_why_it_waits(self, queued, fleet, monkeypatch):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        execute_run(run_id=queued.pk, now=timezone.now())
        queued.refresh_from_db()
        assert (queued.state, queued.problem["code"]) == ("running", "CONNECTION_LOST")
        assert queued.lease_until > timezone.now()
        monkeypatch.undo()
        run = next_worker(queued, monkeypatch)
        assert (run.state, run.attempt) == ("succeeded", 2)

    def test_fails_after_the_last_attempt(self, queued, monkeypatch):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        for _ in range(runs.MOST_ATTEMPTS):
            Run.objects.filter(pk=queued.pk).update(lease_until=None)
            execute_run(run_id=queued.pk, now=timezone.now())
        queued.refresh_from_db()
        assert (queued.state, queued.problem["code"]) == ("failed", "CONNECTION_LOST")
        assert not PortReservation.objects.filter(until__isnull=True).exists()

    def test_a_launch_whose_run_gave_up_is_found_and_verified_by_the_watcher(self, queued, host, monkeypatch, settings):
        settings.WATCH_INTERVAL_SECONDS = 1

        def break_off(self, *_args, **_kwargs):
            raise ConnectionLost("CONNECTION_LOST", address="gpu-a", detail="cut")

        monkeypatch.setattr(WorkerListener, "launched", break_off)
        monkeypatch.setattr(runs, "MOST_ATTEMPTS", 1)
        execute_run(run_id=queued.pk, now=timezone.now())
        launch = Launch.objects.get(plan=queued.plan)
        assert launch.state == LaunchState.LAUNCHING
        assert PortReservation.objects.get(launch=launch).until is None
        with watched(host):
            eventually(lambda: Launch.objects.filter(pk=launch.pk, state="ready").exists(), seconds=25)
        launch.refresh_from_db()
        assert launch.pid
        assert launch.verdict["probe"]["answer"]["tokens"] >= 1


class TestCancel:
    def test_of_a_waiting_run_gives_everything_back_at_once(self, queued):
        request_cancel(run=queued, by=ANN, now=timezone.now())
        queued.refresh_from_db()
        assert queued.state == "cancelled"
        assert not Reservation.objects.filter(until__isnull=True).exists()
        assert not PortReservation.objects.filter(until__isnull=True).exists()

    def test_during_the_start_leaves_no_process(self, queued, fleet, monkeypatch):
        told = WorkerListener.progress

        def ask_to_end(self, launch_id, progress, *, offset):
            told(self, launch_id, progress, offset=offset)
            request_cancel(run=queued, by=ANN, now=timezone.now())

        monkeypatch.setattr(WorkerListener, "progress", ask_to_end)
        execute_run(run_id=queued.pk, now=timezone.now())
        queued.refresh_from_db()
        assert (queued.state, Launch.objects.get(plan=queued.plan).state) == ("cancelled", "stopped")
        assert leaders(fleet) == []
        assert not PortReservation.objects.filter(until__isnull=True).exists()

    def test_after_the_end_changes_nothing(self, host):
        run = start(host)
        request_cancel(run=run, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert run.state == "succeeded"


class TestReboot:
    def test_of_the_host_ends_what_served_there_and_frees_the_ledger(self, host, fleet, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        run = start(host)
        launch = Launch.objects.get(plan=run.plan)
        # Young launches are not judged by what is missing: an observation may be older than they are.
        Launch.objects.update(launched_at=timezone.now() - timedelta(minutes=1))
        fleet["gpu-a"].reboot()
        with watched(host):
            eventually(lambda: Launch.objects.filter(pk=launch.pk, state="failed").exists())
        launch.refresh_from_db()
        assert launch.cause["code"] == "HOST_REBOOTED"
        assert not PortReservation.objects.filter(until__isnull=True).exists()


class TestStopWithoutAnEnd:
    def test_a_stop_that_was_carried_out_unheard_is_seen_by_the_watcher(self, host, fleet, monkeypatch, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        run = start(host)
        launch = Launch.objects.get(plan=run.plan)

        def break_off(self, *_args, **_kwargs):
            raise ConnectionLost("CONNECTION_LOST", address="gpu-a", detail="cut")

        monkeypatch.setattr(WorkerListener, "stopped", break_off)
        monkeypatch.setattr(runs, "MOST_ATTEMPTS", 1)
        plan = make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now())
        request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        assert Launch.objects.get(pk=launch.pk).state == "stopping"
        with watched(host):
            eventually(lambda: Launch.objects.filter(pk=launch.pk, state="stopped").exists())
        assert not PortReservation.objects.filter(until__isnull=True).exists()


class TestDuringARun:
    """A restart of many takes long: those not in work are looked after all the while."""

    @pytest.fixture
    def busy(self, host, settings) -> Launch:
        settings.WATCH_INTERVAL_SECONDS = 1
        run = start(host)
        Run.objects.filter(pk=run.pk).update(state="running")
        return Launch.objects.get(plan=run.plan)

    def test_one_that_serves_and_dies_is_seen(self, busy, host, fleet):
        fleet["gpu-a"].kill("vllm serve")
        fleet["gpu-a"].kill("EngineCore")
        with watched(host):
            eventually(lambda: Launch.objects.filter(pk=busy.pk, state="failed").exists())

    @pytest.mark.parametrize("state", ["launching", "starting", "stopping"])
    def test_one_in_work_is_left_to_its_worker(self, busy, host, state):
        Launch.objects.filter(pk=busy.pk).update(state=state)
        assert not unattended(host).exists()

    def test_what_was_seen_does_not_count_once_the_worker_has_gone_on(self, busy, host):
        seen = Launch.objects.get(pk=busy.pk)
        Launch.objects.filter(pk=busy.pk).update(state="stopping")
        found_exited(seen, {"exit_code": 0, "exit_signal": None, "processes": []}, now=timezone.now())
        assert Launch.objects.get(pk=busy.pk).state == "stopping"


class TestLeftovers:
    @pytest.fixture
    def failed(self, host) -> Launch:
        """It failed with a process left behind, which its host's page counts as ours."""
        run = start(host)
        left = [
            {"pid": 4711, "role": "engine_core", "rss": 1, "title": "VLLM::EngineCore", "device_memory": {"x": 2**30}}
        ]
        long_ago = timezone.now() - timedelta(minutes=5)
        Launch.objects.filter(plan=run.plan).update(
            state="failed", processes=left, launched_at=long_ago, created_at=long_ago
        )
        return Launch.objects.select_related("instance", "environment", "host", "plan").get(plan=run.plan)

    def test_that_end_are_counted_no_more(self, failed):
        found_empty(failed, {"processes": []}, now=timezone.now())
        failed.refresh_from_db()
        assert (failed.processes, failed.state) == ([], "failed")
        assert not PortReservation.objects.filter(until__isnull=True).exists()

    def test_on_a_host_that_knows_nothing_of_it_are_counted_no_more(self, failed):
        judge_missing(failed, boot_id="another", now=timezone.now())
        failed.refresh_from_db()
        assert failed.processes == []
        assert not PortReservation.objects.filter(until__isnull=True).exists()


def lose_connection(_run):
    raise ConnectionLost("CONNECTION_LOST", address="gpu-a", detail="cut")


class watched:  # noqa: N801 (reads as a word)
    """A watcher on the host while the block runs."""

    def __init__(self, host) -> None:
        self.watcher = Watcher()
        self.thread = threading.Thread(target=self.watcher.watch_host, args=(host.pk,), daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_exception) -> None:
        self.watcher.stop.set()
        self.thread.join(40)
        assert not self.thread.is_alive()
