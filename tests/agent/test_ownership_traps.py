"""Processes that look like a launch's and are none of it, real ones of this machine, beside an orphan that is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.linux import LinuxSystem
from hosts.agent.proc import read_process
from hosts.agent.status_file import read_json, write_json
from tests.agent.channel import L1, L2, Channel, is_alive, wait_gone
from tests.agent.conftest import Opener
from tests.agent.test_sweep import orphan

Start = Callable[..., subprocess.Popen[bytes]]
# prctl(PR_SET_DUMPABLE, 0): /proc/PID/environ then belongs to root, and only root can read it.
HIDE_ENVIRONMENT = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); time.sleep(600)"


@pytest.fixture
def start() -> Iterator[Start]:
    """A process of this machine with a title, in a session of its own."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(title: str = "VLLM::EngineCore", *, marker: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.defpath, **({"FLEETADMIN_LAUNCH": marker} if marker else {})}
        begun.append(
            subprocess.Popen(
                [title, "600"], executable="/bin/sleep", env=environment, start_new_session=True, **options
            )
        )
        wait_for_title(begun[-1].pid, title)
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def wait_for_title(pid: int, title: str) -> None:
    until = time.monotonic() + 10
    while (found := read_process(pid)) is None or not found.title.startswith(title):
        assert time.monotonic() < until, found
        time.sleep(0.01)


def preview(agent: Channel) -> dict[str, Any]:
    return agent.ask("sweep", preview=True)["orphans"][0]


def left_alone(agent: Channel) -> dict[int, str]:
    return {item["pid"]: item["why"] for item in preview(agent)["left_alone"]}


def sweep_as_shown(agent: Channel, launch_id: str) -> dict[str, Any]:
    return agent.ask("sweep", preview=False, launches=[launch_id], processes=preview(agent)["processes"])


def sweep_leaves(agent: Channel, pid: int) -> None:
    assert sweep_as_shown(agent, L1)["refused"] == []
    assert is_alive(pid)
    assert agent.ask("sweep", preview=True)["orphans"] == []


class TestWhatIsLeftAlone:
    def test_a_stranger_with_a_prefixed_title(self, agent: Channel, start: Start) -> None:
        orphan(agent, L1)
        stranger = start("fleet-a::EngineCore")
        assert left_alone(agent)[stranger.pid] == "NO_PROOF"
        sweep_leaves(agent, stranger.pid)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
    def test_one_of_another_user_with_our_marker(self, agent: Channel, start: Start) -> None:
        orphan(agent, L1)
        other = start(marker=L1, user=65534)
        assert left_alone(agent)[other.pid] == "OTHER_USER"
        sweep_leaves(agent, other.pid)

    def test_a_sibling_of_the_same_account(self, agent: Channel, start: Start) -> None:
        orphan(agent, L1)
        agent.launch(L2, slot="s2")
        sibling = agent.wait_tree(L2)
        assert left_alone(agent)[sibling["engine_core"]["pid"]] == "OTHER_LAUNCH"
        sweep_leaves(agent, sibling["engine_core"]["pid"])
        assert is_alive(sibling["api_server"]["pid"])

    def test_the_launch_of_another_controller(self, agent: Channel, open_agent: Opener) -> None:
        orphan(agent, L1)
        tree = orphan(open_agent(controller="c2"), L2, slot="s2")
        assert left_alone(agent)[tree["engine_core"]["pid"]] == "OTHER_LAUNCH"
        sweep_leaves(agent, tree["engine_core"]["pid"])

    def test_a_process_whose_session_has_the_number_of_the_launch(
        self, agent: Channel, start: Start, state_root: Path
    ) -> None:
        """The launch's record is given the stranger's real session, as the kernel does once that number is free."""
        orphan(agent, L1)
        stranger = start()
        status = next(state_root.rglob(f"{L1}/status.json"))
        write_json(str(status), {**(read_json(str(status)) or {}), "sid": stranger.pid})
        assert left_alone(agent)[stranger.pid] == "SESSION_REUSED"
        sweep_leaves(agent, stranger.pid)


class TestUnreadableEnvironment:
    @pytest.fixture
    def hidden(self, agent: Channel) -> int:
        """A child of the launch's own leader, in its session, that hides its environment even from its own account."""
        argv = [sys.executable, "-c", LEADER_WITH_HIDDEN_CHILD]
        started = agent.launch(L1, argv=argv)
        until = time.monotonic() + 10
        while not (lines := Path(started["log_path"]).read_text().split()):
            assert time.monotonic() < until
            time.sleep(0.02)
        return int(lines[0])

    def test_leaves_the_session_as_proof(self, agent: Channel, open_agent: Opener, hidden: int) -> None:
        """Root reads every environment: what an account without that right sees is put in its place."""
        agent = open_agent(Blind())
        leader = agent.ask("status", launch_id=L1)["pid"]
        assert Path(f"/proc/{hidden}/environ").stat().st_uid == 0
        os.kill(leader, signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        assert {process["pid"]: process["proof"] for process in preview(agent)["processes"]} == {hidden: "session"}
        assert sweep_as_shown(agent, L1)["refused"] == []
        wait_gone(hidden)


LEADER_WITH_HIDDEN_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {HIDE_ENVIRONMENT!r}])
time.sleep(0.5)
print(child.pid, flush=True)
time.sleep(600)
"""


class Blind(LinuxSystem):
    """No environment can be read."""

    def processes(self) -> list[Any]:
        return [blind(process) for process in super().processes()]

    def process(self, pid: int) -> Any:
        found = super().process(pid)
        return None if found is None else blind(found)


def blind(process: Any) -> Any:
    return type(process)(**{**vars(process), "marker": None, "controller": None})


class TestNamedProcesses:
    def test_name_their_proof(self, agent: Channel) -> None:
        orphan(agent, L1)
        assert {process["proof"] for process in preview(agent)["processes"]} == {"marker"}

    def test_are_all_that_a_sweep_touches(self, agent: Channel, start: Start) -> None:
        tree = orphan(agent, L1)
        named = preview(agent)["processes"]
        newcomer = start("fleet::Worker_TP0", marker=L1)
        refused = agent.ask("sweep", preview=False, launches=[L1], processes=named)["refused"]
        assert [(entry["code"], entry["numbers"]["pids"]) for entry in refused] == [("NOT_NAMED", [newcomer.pid])]
        assert is_alive(newcomer.pid)
        assert is_alive(tree["engine_core"]["pid"])

    def test_are_none_where_the_list_makes_no_sense(self, agent: Channel) -> None:
        tree = orphan(agent, L1)
        answer = agent.refused("sweep", preview=False, launches=[L1], processes=[{"pid": "1"}])
        assert answer["code"] == "BAD_REQUEST"
        assert is_alive(tree["engine_core"]["pid"])
