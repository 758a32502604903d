"""A worker killed in a stop, after a refusal, or again and again: the next one goes on from what is written down."""

import socket

import pytest

from deployments.models import Event
from deployments.services.listening import WorkerListener
from tests.recovery.conftest import Killed, held, launch_of, servers_on

pytestmark = pytest.mark.django_db(transaction=True)
STOP_STEPS = ["stopping", "stopped"]


@pytest.fixture
def kill_at(monkeypatch):
    """Let the worker die once, before or after it wrote this step down."""

    def arm(step: str, moment: str) -> None:
        written = getattr(WorkerListener, step)

        def dying(self, *args, **kwargs):
            monkeypatch.setattr(WorkerListener, step, written)
            if moment == "after":
                written(self, *args, **kwargs)
            raise Killed

        monkeypatch.setattr(WorkerListener, step, dying)

    return arm


@pytest.mark.parametrize("moment", ["before", "after"])
class TestWorkerKilled:
    @pytest.mark.parametrize("step", STOP_STEPS)
    def test_in_a_stop_the_next_worker_goes_on(self, step, moment, kill_at, queued, queued_stop, work, fleet):
        started = work(queued())
        run = queued_stop(started)
        kill_at(step, moment)
        with pytest.raises(Killed):
            work(run)
        run = work(run, owner="worker:2")
        assert (run.state, launch_of(started).state) == ("succeeded", "stopped"), run.problem
        assert not servers_on(fleet["gpu-a"].machine)
        assert held() == (0, 0)

    def test_after_a_refusal_the_next_worker_does_not_start_what_already_failed(
        self, moment, kill_at, queued, work, fleet, host
    ):
        run = queued()
        launch = launch_of(run)
        kill_at("failed", moment)
        with socket.create_server((host.address, launch.port)), pytest.raises(Killed):
            work(run)
        run = work(run, owner="worker:2")
        launch.refresh_from_db()
        if moment == "before":
            # Nothing was written and the port is free now: the start goes on.
            assert (run.state, launch.state) == ("succeeded", "ready")
            return
        assert run.state in ("failed", "precondition_failed")
        assert (launch.state, run.problem["code"]) == ("failed", "PORT_TAKEN")
        assert not servers_on(fleet["gpu-a"].machine)
        assert held() == (0, 0)


class TestMoves:
    def test_leave_one_event_each_however_often_a_worker_dies(self, kill_at, queued, work):
        run = queued()
        for number, step in enumerate(["launching", "progress", "verified"]):
            kill_at(step, "after")
            with pytest.raises(Killed):
                work(run, owner=f"worker:{number}")
        run = work(run, owner="worker:9")
        moves = list(Event.objects.filter(launch=launch_of(run)).order_by("pk").values_list("after", flat=True))
        assert run.state == "succeeded"
        assert moves == ["launching", "starting", "ready"]
