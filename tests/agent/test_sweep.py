from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from hosts.agent.linux import LinuxSystem
from hosts.agent.system import Process
from tests.agent.channel import L1, L2, Channel, is_alive, wait_gone
from tests.agent.conftest import Opener


def orphan(agent: Channel, launch_id: str, **args: str) -> dict[str, dict[str, int]]:
    """A launch whose leader was killed; its processes by role."""
    agent.launch(launch_id, **args)
    tree = agent.wait_tree(launch_id)
    os.kill(tree["api_server"]["pid"], signal.SIGKILL)
    agent.wait_status(launch_id, lambda view: view["state"] == "orphaned")
    return tree


class TestSweep:
    def test_shows_orphans_first_and_kills_those_named(self, agent: Channel) -> None:
        first, second = orphan(agent, L1), orphan(agent, L2, slot="s2")
        preview = agent.ask("sweep", preview=True)["orphans"]
        assert {entry["launch_id"]: [p["pid"] for p in entry["processes"]] for entry in preview} == {
            L1: [first["resource_tracker"]["pid"], first["engine_core"]["pid"]],
            L2: [second["resource_tracker"]["pid"], second["engine_core"]["pid"]],
        }
        assert preview[0]["device_memory"] is None
        assert is_alive(first["engine_core"]["pid"])
        done = agent.ask("sweep", preview=False, launches=[L1])
        assert done["refused"] == []
        assert first["engine_core"]["pid"] in done["swept"][0]["killed"]
        wait_gone(first["engine_core"]["pid"], first["resource_tracker"]["pid"])
        assert is_alive(second["engine_core"]["pid"])
        assert [entry["launch_id"] for entry in agent.ask("sweep", preview=True)["orphans"]] == [L2]
        assert agent.ask("status", launch_id=L1)["closed"] is True

    def test_leaves_a_launch_whose_leader_lives(self, agent: Channel) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        assert agent.ask("sweep", preview=True)["orphans"] == []
        done = agent.ask("sweep", preview=False, launches=[L1, "never"])
        assert {entry["launch_id"]: entry["code"] for entry in done["refused"]} == {
            L1: "LEADER_ALIVE",
            "never": "LAUNCH_UNKNOWN",
        }
        assert agent.ask("status", launch_id=L1)["state"] == "running"

    def test_leaves_orphans_of_another_controller(self, agent: Channel, open_agent: Opener) -> None:
        tree = orphan(agent, L1)
        other = open_agent(controller="c2")
        assert other.ask("sweep", preview=True)["orphans"] == []
        assert other.ask("sweep", preview=False, launches=[L1])["refused"][0]["code"] == "NOT_OURS"
        assert is_alive(tree["engine_core"]["pid"])

    def test_removes_nothing_unasked(self, agent: Channel) -> None:
        assert agent.refused("sweep", preview=False)["code"] == "BAD_REQUEST"


class TestForeignProcesses:
    @pytest.fixture
    def bystander(self) -> Iterator[subprocess.Popen[bytes]]:
        """Looks like vLLM's engine and is nobody's."""
        with subprocess.Popen(["VLLM::EngineCore", "600"], executable="/bin/sleep", start_new_session=True) as process:
            yield process
            process.kill()

    def test_are_never_touched_whatever_their_title_and_session(
        self, open_agent: Opener, bystander: subprocess.Popen[bytes]
    ) -> None:
        signalled: list[int] = []

        class Crowded(LinuxSystem):
            """Shows the bystander in the launch's session, started before its leader."""

            session, leader_start = 0, 0

            def process(self, pid: int) -> Process | None:
                return next((process for process in self.processes() if process.pid == pid), None)

            def processes(self) -> list[Process]:
                found = super().processes()
                if self.session:
                    for number, process in enumerate(found):
                        if process.pid == bystander.pid:
                            changed = {
                                **vars(process),
                                "sid": self.session,
                                "start_time": self.leader_start - 1,
                            }
                            found[number] = Process(**changed)
                return found

            def signal(self, pid: int, start_time: int, number: int) -> bool:
                signalled.append(pid)
                return super().signal(pid, start_time, number)

        system = Crowded()
        agent = open_agent(system)
        started = agent.launch(L1)
        tree = agent.wait_tree(L1)
        system.session, system.leader_start = started["sid"], started["start_time"]
        assert bystander.pid not in [p["pid"] for p in agent.ask("status", launch_id=L1)["processes"]]
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        agent.ask("sweep", preview=False, launches=[L1])
        assert tree["engine_core"]["pid"] in signalled
        assert bystander.pid not in signalled
        assert is_alive(bystander.pid)
