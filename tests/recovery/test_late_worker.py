"""A worker that was paused and wakes up after another has taken over: it changes neither the host nor the rows."""

from datetime import timedelta

import pytest
from django.utils import timezone

from deployments.models import Run
from deployments.services import runs
from deployments.services.listening import WorkerListener
from tests.recovery.conftest import held, launch_of, servers_on

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def overtaken_at(work, monkeypatch):
    """While the first worker is at this step, its lease ends and a second one carries the run to its end."""

    def arm(run: Run, step: str) -> None:
        written = getattr(WorkerListener, step)

        def paused(self, *args, **kwargs):
            monkeypatch.setattr(WorkerListener, step, written)
            work(run, owner="worker:2")
            monkeypatch.setattr(runs, "OWNER", "worker:1")
            written(self, *args, **kwargs)

        monkeypatch.setattr(WorkerListener, step, paused)

    return arm


class TestOvertakenWorker:
    @pytest.mark.parametrize("step", ["launching", "launched", "progress", "verifying", "verified"])
    def test_of_a_start_leaves_what_the_other_did(self, step, overtaken_at, queued, work, fleet):
        run = queued()
        overtaken_at(run, step)
        run = work(run)
        launch = launch_of(run)
        assert (run.state, launch.state) == ("succeeded", "ready"), (run.problem, launch.cause)
        assert (run.problem, launch.cause) == (None, None)
        assert len(servers_on(fleet["gpu-a"].machine)) == 1
        assert held() == (1, 1)

    @pytest.mark.parametrize("step", ["stopping", "stopped"])
    def test_of_a_stop_leaves_what_the_other_did(self, step, overtaken_at, queued, queued_stop, work, fleet):
        started = work(queued())
        run = queued_stop(started)
        overtaken_at(run, step)
        run = work(run)
        assert (run.state, launch_of(started).state) == ("succeeded", "stopped"), run.problem
        assert not servers_on(fleet["gpu-a"].machine)
        assert held() == (0, 0)

    def test_does_not_end_a_run_that_the_other_still_works_on(self, queued, work, monkeypatch):
        """Its own attempt ends with an error, long after the run was claimed by another."""
        run = queued()

        def taken_over_then_broken(claimed):
            Run.objects.filter(pk=claimed.pk).update(
                lease_owner="worker:2", attempt=claimed.attempt + 1, lease_until=timezone.now() + timedelta(1)
            )
            raise ValueError("late")

        monkeypatch.setattr(runs, "carry_out", taken_over_then_broken)
        with pytest.raises(ValueError, match="late"):
            work(run)
        run.refresh_from_db()
        assert (run.state, run.lease_owner) == ("running", "worker:2")
