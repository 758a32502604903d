"""Ending a run before it is done: held until nothing is left, forced by a right of its own, never told before it is so."""

import threading
import time

import pytest
from django.db import connection
from django.utils import timezone

from audit.models import Entry
from deployments.models import Launch, PortReservation, Reservation, Run
from deployments.services import runs
from deployments.services.cancelling import request_cancel, request_force
from deployments.services.listening import WorkerListener
from deployments.services.runs import RunRefused, execute_run, request_run
from tests.fleet.conftest import ANN
from tests.fleet.test_lost_workers import leaders, lose_connection
from tests.fleet.test_start_and_stop import plan_start, start

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(enrol):
    return enrol("gpu-a")


@pytest.fixture
def queued(host, monkeypatch) -> Run:
    """A run that no worker has claimed yet."""
    monkeypatch.setattr("hosts.queue.send", lambda *_: None)
    plan = plan_start(host)
    return request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())


def cancel(run: Run) -> None:
    request_cancel(run=run, by=ANN, now=timezone.now())


def force(run: Run) -> None:
    request_force(run=run, by=ANN, now=timezone.now())


def execute(run: Run) -> Run:
    """The next attempt, whose turn has come."""
    Run.objects.filter(pk=run.pk).update(lease_until=None)
    execute_run(run_id=run.pk, now=timezone.now())
    run.refresh_from_db()
    return run


def lose_host(monkeypatch, *, at: str) -> None:
    """The connection breaks at this step, and from then on the host cannot be reached."""

    def broken(_self, *_args, **_kwargs):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        lose_connection(None)

    monkeypatch.setattr(WorkerListener, at, broken)


class TestForce:
    def test_is_refused_before_a_cancel(self, queued):
        with pytest.raises(RunRefused) as refused:
            force(queued)
        assert refused.value.problem["code"] == "FORCE_BEFORE_CANCEL"
        assert not Entry.objects.filter(action="run.force_cancel").exists()

    def test_is_refused_after_the_end(self, host):
        run = start(host)
        with pytest.raises(RunRefused) as refused:
            force(run)
        assert refused.value.problem["code"] == "RUN_ENDED"

    def test_is_written_into_the_trail_once(self, queued, monkeypatch):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        execute(queued)
        cancel(queued)
        force(queued)
        force(queued)
        assert [entry.actor for entry in Entry.objects.filter(action="run.force_cancel")] == ["ann"]

    def test_kills_what_a_patient_stop_still_waits_for(self, queued, fleet, monkeypatch):
        """No process hears SIGTERM: without the force the host would wait for its whole grace before it kills."""
        fleet["gpu-a"].fail_next("deaf")
        signals = note_signals(monkeypatch)
        cancel_at(monkeypatch, "progress", queued)
        worker = threading.Thread(target=work, args=(queued.pk,))
        worker.start()
        wait_until(lambda: Launch.objects.filter(plan=queued.plan, state="stopping").exists())
        force(queued)
        worker.join(60)
        queued.refresh_from_db()
        assert (queued.state, Launch.objects.get(plan=queued.plan).state) == ("cancelled", "stopped")
        assert signals
        assert set(signals) <= {"TERM", "KILL"}
        assert signals.count("TERM") <= 1  # the first; the second and those of the ladder below it were left out
        assert leaders(fleet) == []
        assert not PortReservation.objects.filter(until__isnull=True).exists()


class TestWithoutTheHost:
    def test_a_cancelled_run_goes_on_asking_beyond_the_attempts_of_others(self, queued, monkeypatch):
        lose_host(monkeypatch, at="launched")
        execute(queued)
        cancel(queued)
        for _ in range(runs.MOST_ATTEMPTS + 1):
            execute(queued)
        assert (queued.state, queued.problem["code"]) == ("running", "CONNECTION_LOST")
        pause = (queued.lease_until - timezone.now()).total_seconds()
        assert 0 < pause <= runs.LONGEST_RETRY_SECONDS
        assert PortReservation.objects.filter(until__isnull=True).exists()

    def test_forced_it_ends_and_says_what_may_still_run(self, queued, fleet, monkeypatch):
        lose_host(monkeypatch, at="launched")
        execute(queued)
        cancel(queued)
        force(queued)
        execute(queued)
        assert (queued.state, queued.problem["code"]) == ("failed", "CANCEL_NOT_PROVEN")
        assert "1 launch may still run" in queued.problem["message"]
        assert queued.problem["next_step"]
        # What may run is still held: it is no state of nothing.
        assert len(leaders(fleet)) == 1
        assert PortReservation.objects.filter(until__isnull=True).exists()

    def test_forced_it_is_cancelled_where_nothing_had_begun(self, queued, fleet, monkeypatch):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        execute(queued)
        cancel(queued)
        assert execute(queued).state == "running"
        force(queued)
        execute(queued)
        assert (queued.state, queued.problem) == ("cancelled", None)
        assert not Reservation.objects.filter(until__isnull=True).exists()
        assert leaders(fleet) == []

    def test_a_cancel_lets_a_waiting_run_ask_at_once(self, queued, monkeypatch):
        monkeypatch.setattr(runs, "carry_out", lose_connection)
        execute(queued)
        assert queued.lease_until > timezone.now()
        cancel(queued)
        queued.refresh_from_db()
        assert queued.lease_until is None

    def test_back_again_it_is_cleaned_up_and_cancelled(self, queued, fleet, monkeypatch):
        with monkeypatch.context() as gone:
            lose_host(gone, at="launched")
            execute(queued)
            cancel(queued)
            execute(queued)
        execute(queued)
        assert (queued.state, Launch.objects.get(plan=queued.plan).state) == ("cancelled", "stopped")
        assert leaders(fleet) == []
        assert not PortReservation.objects.filter(until__isnull=True).exists()


def cancel_at(monkeypatch, step: str, run: Run) -> None:
    """Somebody cancels while the worker writes this step down."""
    told = getattr(WorkerListener, step)

    def tell(self, *args, **kwargs):
        told(self, *args, **kwargs)
        cancel(run)

    monkeypatch.setattr(WorkerListener, step, tell)


def note_signals(monkeypatch) -> list[str]:
    """The names of the signals that the host's stop has sent, once it has answered."""
    noted: list[str] = []
    told = WorkerListener.stopped

    def tell(self, launch_id, report):
        noted.extend(sent["signal"] for sent in report["signals"])
        told(self, launch_id, report)

    monkeypatch.setattr(WorkerListener, "stopped", tell)
    return noted


def work(run_id: int) -> None:
    execute_run(run_id=run_id, now=timezone.now())
    connection.close()


def wait_until(check) -> None:
    end = time.monotonic() + 20
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)
