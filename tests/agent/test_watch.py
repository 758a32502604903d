from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from hosts.agent.linux import LinuxSystem
from hosts.agent.system import DeviceUse
from tests.agent.channel import L0, L1, L2, Channel
from tests.agent.conftest import Opener


def logs(agent: Channel, request: str) -> dict[str, str]:
    """The text of each launch so far; offsets must fit together."""
    texts: dict[str, str] = {}
    following: dict[str, int] = {}
    for body in agent.events(request):
        if "log" in body:
            log = body["log"]
            assert log["offset"] == following.get(log["launch_id"], log["offset"])
            following[log["launch_id"]] = log["next"]
            texts[log["launch_id"]] = texts.get(log["launch_id"], "") + log["text"]
    return texts


def states(agent: Channel, request: str) -> list[dict[str, str]]:
    return [
        {view["launch_id"]: view["state"] for view in body["launches"]}
        for body in agent.events(request)
        if "launches" in body
    ]


def wait_for(agent: Channel, request: str, wanted: Any) -> None:
    agent.wait_for(request, lambda _found: wanted())


class TestWatch:
    def test_sends_samples_and_the_launches_first(self, agent: Channel) -> None:
        request = agent.begin("watch", interval_s=0.3)
        wait_for(agent, request, lambda: sum("sample" in body for body in agent.events(request)) >= 2)
        sample = next(body["sample"] for body in agent.events(request) if "sample" in body)
        assert sample["memory"]["total"] > sample["memory"]["available"] > 0
        assert len(sample["load"]) == 3
        assert states(agent, request) == [{}]

    def test_follows_new_launches_and_tells_only_changes(self, agent: Channel) -> None:
        request = agent.begin("watch", interval_s=60)
        agent.launch(L1, "--say", "hello")
        wait_for(agent, request, lambda: logs(agent, request).get(L1) == "hello\nready\n")
        tree = agent.wait_tree(L1)
        wait_for(agent, request, lambda: states(agent, request)[-1] == {L1: "running"})
        time.sleep(1.2)
        told = len(states(agent, request))
        time.sleep(1.2)
        assert len(states(agent, request)) == told
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        wait_for(agent, request, lambda: states(agent, request)[-1] == {L1: "orphaned"})
        agent.ask("sweep", preview=False, launches=[L1])
        wait_for(agent, request, lambda: states(agent, request)[-1] == {L1: "exited"})
        agent.ask("cancel", id=request)
        assert agent.finish(request)[-1]["body"] == {"cancelled": True}

    def test_reads_from_the_offsets_it_is_given_and_ended_logs_to_their_end(self, agent: Channel) -> None:
        for launch_id, slot in ((L0, "s0"), (L1, "s1")):
            agent.launch(launch_id, "--say", "one", "--say", "two", "--exit-code", "0", slot=slot)
            agent.wait_status(launch_id, lambda view: view["state"] == "exited")
        agent.launch(L2, slot="s2")
        agent.wait_tree(L2)
        request = agent.begin("watch", interval_s=60, logs={L1: 4})
        wait_for(agent, request, lambda: set(logs(agent, request)) == {L1, L2})
        assert logs(agent, request) == {L1: "two\n", L2: "ready\n"}

    def test_keeps_logs_of_other_controllers_to_them(self, agent: Channel, open_agent: Opener) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        other = open_agent(controller="c2")
        request = other.begin("watch", interval_s=0.2)
        wait_for(other, request, lambda: sum("sample" in body for body in other.events(request)) >= 4)
        assert (logs(other, request), states(other, request)) == ({}, [{}])


class WithGpu(LinuxSystem):
    """One card that two processes hold: one of the launch, one of nobody."""

    holders: tuple[tuple[int, int | None], ...] = ()

    def device_use(self) -> list[DeviceUse]:
        return [DeviceUse("GPU-1", total=100, used=60, free=40, processes=self.holders)]


class TestObserve:
    def test_tells_ours_from_foreign_on_a_device(self, open_agent: Opener) -> None:
        system = WithGpu()
        agent = open_agent(system)
        agent.launch(L1)
        engine = agent.wait_tree(L1)["engine_core"]["pid"]
        system.holders = ((engine, 42), (os.getpid(), None), (2**22 - 1, 7))
        found = agent.ask("observe")
        (view,) = found["launches"]
        memory = {process["pid"]: process["device_memory"] for process in view["processes"]}
        assert memory[engine] == {"GPU-1": 42}
        assert [(process["pid"], process["device_memory"]) for process in found["foreign"]] == [
            (os.getpid(), {"GPU-1": None})
        ]
        assert found["devices"][0]["power_w"] is None
        assert {"pid": 2**22 - 1, "used": 7} in found["devices"][0]["processes"]

    def test_sums_what_orphans_hold(self, open_agent: Opener) -> None:
        system = WithGpu()
        agent = open_agent(system)
        agent.launch(L1)
        tree = agent.wait_tree(L1)
        system.holders = ((tree["engine_core"]["pid"], 42),)
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        assert agent.ask("sweep", preview=True)["orphans"][0]["device_memory"] == 42

    def test_shows_marked_processes_that_the_state_root_does_not_know(self, agent: Channel, state_root: Path) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        (request,) = state_root.glob(f"*/*/launches/{L1}/request.json")
        content = request.read_bytes()
        request.unlink()
        (view,) = agent.ask("observe")["launches"]
        assert (view["launch_id"], view["state"], len(view["processes"])) == (L1, "unknown", 3)
        assert agent.refused("stop", launch_id=L1)["code"] == "LAUNCH_UNKNOWN"
        request.write_bytes(content)
