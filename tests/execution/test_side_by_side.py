"""Which launches run at a time, what opens the way, and what ends all of them."""

import threading

import pytest

from deployments.execution.outcomes import Cancelled, Done, Failed, PreconditionFailed
from deployments.execution.side_by_side import Interrupted, Shared, SideBySide

BROKEN = PreconditionFailed(code="PORT_TAKEN", message="m", next_step="n", wanted="w", found="f")
FAILED = Failed("X", "m", "n")


class Floor:
    """Launches that the test moves on by hand."""

    def __init__(self, *, after=None, room=10, names="abcd", **values):
        self.began: list[str] = []
        self.changed = threading.Condition()
        self.gates = {name: threading.Event() for name in names}
        self.ends = {name: threading.Event() for name in names}
        self.results: dict[str, object] = {}
        self.cancelled = False
        self.left = 0
        self.runner = SideBySide(
            work=self.work,
            after=after or {},
            room=room,
            cancelled=lambda: self.cancelled,
            tick=0.01,
            leave=self.leave,
            **values,
        )
        self.raised = None
        self.thread = threading.Thread(target=self.run, args=(list(names),), daemon=True)
        self.thread.start()

    def run(self, names):
        try:
            self.outcomes = self.runner.run(names)
        except BaseException as error:  # noqa: BLE001
            self.raised = error

    def work(self, name, gate):
        with self.changed:
            self.began.append(name)
            self.changed.notify_all()
        while not self.ends[name].wait(0.005):
            if self.gates[name].is_set():
                gate()
                self.gates[name].clear()
        result = self.results.get(name, Done())
        if isinstance(result, BaseException):
            raise result
        return result

    def leave(self):
        self.left += 1

    def wait_for(self, *names):
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= set(self.began), timeout=5), self.began

    def stays(self, *names):
        threading.Event().wait(0.06)
        assert sorted(self.began) == sorted(names)

    def end(self, *names, result=None):
        for name in names:
            if result is not None:
                self.results[name] = result
            self.ends[name].set()

    def join(self):
        self.thread.join(5)
        assert not self.thread.is_alive()


class TestGates:
    def test_a_leader_is_followed_when_its_gate_is_passed(self):
        floor = Floor(after={name: ["a"] for name in "bcd"})
        floor.stays("a")
        floor.gates["a"].set()
        floor.wait_for("b", "c", "d")
        floor.end(*"abcd")
        floor.join()
        assert set(floor.outcomes) == set("abcd")

    def test_a_leader_that_fails_is_followed_too(self):
        floor = Floor(after={name: ["a"] for name in "bcd"})
        floor.end("a", result=FAILED)
        floor.wait_for("b", "c", "d")
        floor.end(*"bcd")
        floor.join()
        assert floor.outcomes["a"] is FAILED

    def test_no_more_begin_than_there_is_room_for(self):
        floor = Floor(room=2)
        floor.wait_for("a", "b")
        floor.stays("a", "b")
        floor.gates["a"].set()
        floor.wait_for("c")
        floor.stays("a", "b", "c")
        floor.end(*"abcd")
        floor.join()
        assert floor.left == 4

    def test_no_more_run_than_the_channel_carries(self, monkeypatch):
        monkeypatch.setattr("deployments.execution.side_by_side.MOST_RUNNING", 2)
        floor = Floor()
        floor.wait_for("a", "b")
        floor.gates["a"].set()
        floor.stays("a", "b")
        floor.end("a")
        floor.wait_for("c")
        floor.end(*"bcd")
        floor.join()


class TestEnds:
    @pytest.mark.parametrize("result", [BROKEN, Cancelled()])
    def test_nothing_begins_after_one_that_ends_the_run_and_what_runs_is_waited_for(self, result):
        floor = Floor(room=2)
        floor.wait_for("a", "b")
        floor.end("a", result=result)
        floor.stays("a", "b")
        floor.end("b")
        floor.join()
        assert set(floor.outcomes) == {"a", "b"}

    def test_nothing_begins_after_a_failure_where_that_ends_it_too(self):
        floor = Floor(room=1, ends=(Failed,))
        floor.wait_for("a")
        floor.end("a", result=FAILED)
        floor.join()
        assert set(floor.outcomes) == {"a"}

    def test_a_question_that_fails_is_raised_once_all_have_ended(self):
        floor = Floor(room=1)
        floor.wait_for("a")
        floor.runner.cancelled = lambda: 1 / 0
        floor.stays("a")
        assert floor.thread.is_alive()
        floor.end("a")
        floor.join()
        assert isinstance(floor.raised, ZeroDivisionError)

    def test_the_question_is_asked_to_the_end_since_it_renews_the_lease(self):
        floor = Floor(names="a")
        floor.wait_for("a")
        asked = threading.Event()
        floor.runner.cancelled = lambda: asked.set() or False
        assert asked.wait(2)
        floor.end("a")
        floor.join()

    def test_nothing_begins_after_a_cancel(self):
        floor = Floor(room=1)
        floor.wait_for("a")
        floor.cancelled = True
        floor.end("a")
        floor.join()
        assert set(floor.outcomes) == {"a"}

    def test_an_error_in_a_thread_is_raised_once_all_have_ended(self):
        floor = Floor(room=2)
        floor.wait_for("a", "b")
        floor.end("a", result=KeyError("broken"))
        floor.stays("a", "b")
        assert floor.thread.is_alive()
        floor.end("b", result=Interrupted())
        floor.join()
        assert isinstance(floor.raised, KeyError)

    def test_of_nothing_come_at_once(self):
        floor = Floor(names="")
        floor.join()
        assert floor.outcomes == {}


class TestShared:
    def test_a_listener_lets_one_in_at_a_time(self):
        inside, most = [], []

        class Busy:
            def log(self, number):
                inside.append(number)
                most.append(len(inside))
                threading.Event().wait(0.002)
                inside.remove(number)

        shared = Shared(Busy(), is_broken=lambda: False)
        threads = [threading.Thread(target=shared.log, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(most), max(most)) == (8, 1)

    def test_nobody_goes_on_once_the_run_is_broken(self):
        shared = Shared([], is_broken=lambda: True)
        with pytest.raises(Interrupted):
            shared.append(1)
