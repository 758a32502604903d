from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hosts.agent import stop
from hosts.agent.linux import LinuxSystem
from hosts.agent.system import Process
from tests.agent.channel import L1, Channel, has_line, is_alive, wait_gone
from tests.agent.conftest import Opener


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "TERM_WAIT_S", 0.5)
    monkeypatch.setattr(stop, "SETTLE_S", 0.5)
    monkeypatch.setattr(stop, "TRACKER_WAIT_S", 1.0)


class TestStop:
    def test_leaves_nothing(self, agent: Channel) -> None:
        name = f"psm_test_{os.getpid()}"
        agent.launch(L1, "--shm", name)
        pids = [process["pid"] for process in agent.wait_tree(L1).values()]
        agent.wait_status(L1, lambda view: has_line(view, "mapped"))
        request = agent.begin("stop", launch_id=L1, reason="a test")
        result = agent.finish(request)[-1]["body"]
        assert (result["already_gone"], result["survivors"], result["exit_code"]) == (False, [], 0)
        assert result["shm_removed"] == [name]
        assert not Path("/dev/shm", name).exists()
        assert [event["step"] for event in agent.events(request)] == ["term", "cleanup"]
        assert not any(is_alive(pid) for pid in pids)
        view = agent.ask("status", launch_id=L1)
        assert (view["state"], view["closed"], view["processes"]) == ("exited", True, [])

    def test_terms_again_when_the_first_one_was_swallowed(self, agent: Channel) -> None:
        agent.launch(L1, "--swallow-terms", "1")
        agent.wait_tree(L1)
        request = agent.begin("stop", launch_id=L1, second_term_s=0.4)
        result = agent.finish(request)[-1]["body"]
        assert [event["step"] for event in agent.events(request)] == ["term", "second_term", "cleanup"]
        assert [sent["signal"] for sent in result["signals"]] == ["TERM", "TERM"]

    def test_kills_what_ignores_term_and_lets_the_tracker_end_by_itself(self, agent: Channel) -> None:
        agent.launch(L1, "--ignore-term")
        tree = agent.wait_tree(L1)
        result = agent.ask("stop", launch_id=L1, grace_s=0.6, second_term_s=0.3)
        wait_gone(*(process["pid"] for process in tree.values()))
        killed = {sent["pid"] for sent in result["signals"] if sent["signal"] == "KILL"}
        assert killed == {tree["api_server"]["pid"], tree["engine_core"]["pid"]}
        assert (result["exit_code"], result["exit_signal"]) == (None, signal.SIGKILL)

    def test_ends_a_stopped_engine(self, agent: Channel) -> None:
        agent.launch(L1)
        tree = agent.wait_tree(L1)
        os.kill(tree["engine_core"]["pid"], signal.SIGSTOP)
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        agent.ask("stop", launch_id=L1)
        wait_gone(*(process["pid"] for process in tree.values()))

    def test_says_already_gone_the_second_time(self, agent: Channel) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        assert agent.ask("stop", launch_id=L1)["already_gone"] is False
        again = agent.ask("stop", launch_id=L1)
        assert (again["already_gone"], again["signals"], again["exit_code"]) == (True, [], 0)

    def test_that_is_under_way_hears_a_hurry(self, agent: Channel, open_agent: Opener) -> None:
        name = f"psm_test_{os.getpid()}"
        agent.launch(L1, "--ignore-term", "--shm", name)
        tree = agent.wait_tree(L1)
        agent.wait_status(L1, lambda view: has_line(view, "mapped"))
        began = time.monotonic()
        request = agent.begin("stop", launch_id=L1, grace_s=60, second_term_s=60)
        agent.wait_for(request, lambda found: any(each["kind"] == "event" for each in found))
        open_agent().ask("hurry", launch_id=L1)
        result = agent.finish(request)[-1]["body"]
        assert time.monotonic() - began < 30
        assert [event["step"] for event in agent.events(request)] == ["term", "kill", "cleanup"]
        wait_gone(*(process["pid"] for process in tree.values()))
        assert result["shm_removed"] == [name]

    def test_after_a_hurry_kills_at_once(self, agent: Channel) -> None:
        agent.launch(L1)
        tree = agent.wait_tree(L1)
        agent.ask("hurry", launch_id=L1)
        assert all(is_alive(process["pid"]) for process in tree.values())
        request = agent.begin("stop", launch_id=L1)
        result = agent.finish(request)[-1]["body"]
        assert [event["step"] for event in agent.events(request)] == ["kill", "cleanup"]
        killed = {sent["pid"]: sent["signal"] for sent in result["signals"]}
        assert killed == {tree[role]["pid"]: "KILL" for role in ("api_server", "engine_core")}

    def test_is_hurried_by_its_own_controller_alone(self, agent: Channel, open_agent: Opener) -> None:
        agent.launch(L1)
        assert open_agent(controller="c2").refused("hurry", launch_id=L1)["code"] == "NOT_OURS"

    def test_serves_two_channels_that_stop_at_once(self, agent: Channel, open_agent: Opener) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        other = open_agent()
        requests = [(channel, channel.begin("stop", launch_id=L1)) for channel in (agent, other)]
        results = [channel.finish(request)[-1]["body"] for channel, request in requests]
        assert sorted(result["already_gone"] for result in results) == [False, True]

    def test_names_what_cannot_be_killed(self, open_agent: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        class Stuck(LinuxSystem):
            """A host whose driver keeps the engine in the kernel."""

            def processes(self) -> list[Process]:
                return [self._stick(process) for process in super().processes()]

            def process(self, pid: int) -> Process | None:
                found = super().process(pid)
                return None if found is None else self._stick(found)

            def _stick(self, process: Process) -> Process:
                return replace(process, state="D") if "EngineCore" in process.title else process

            def signal(self, pid: int, start_time: int, number: int) -> bool:
                process = self.process(pid)
                return True if process and process.state == "D" else super().signal(pid, start_time, number)

        monkeypatch.setattr(stop, "KILL_WAIT_S", 0.3)
        agent = open_agent(Stuck())
        agent.launch(L1)
        tree = agent.wait_tree(L1)
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        refusal = agent.refused("stop", launch_id=L1)
        assert refusal["code"] == "STILL_ALIVE"
        assert refusal["numbers"]["states"][str(tree["engine_core"]["pid"])] == "D"
        assert "state D" in refusal["message"]
        assert agent.ask("status", launch_id=L1)["closed"] is False

    def test_refuses_an_unknown_launch(self, agent: Channel) -> None:
        assert agent.refused("stop", launch_id="never")["code"] == "LAUNCH_UNKNOWN"


class TestSignal:
    def test_reaches_one_process_of_the_launch(self, agent: Channel) -> None:
        agent.launch(L1)
        engine = agent.wait_tree(L1)["engine_core"]
        target = {"launch_id": L1, "pid": engine["pid"], "start_time": engine["start_time"]}
        assert agent.ask("signal", **target, signal="STOP") == {"sent": True}
        agent.wait_status(L1, lambda view: any(process["state"] == "T" for process in view["processes"]))
        assert agent.ask("signal", **target, signal="CONT") == {"sent": True}

    def test_refuses_a_process_that_is_not_of_it(self, agent: Channel) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        me = LinuxSystem().process(os.getpid())
        assert me is not None
        target = {"launch_id": L1, "pid": me.pid, "signal": "KILL"}
        assert agent.refused("signal", **target, start_time=me.start_time)["code"] == "NOT_OURS"
        assert agent.refused("signal", **target, start_time=me.start_time + 1)["code"] == "PROCESS_GONE"
        assert agent.refused("signal", **{**target, "signal": "HUP"}, start_time=1)["code"] == "BAD_REQUEST"
