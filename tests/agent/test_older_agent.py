"""Launches that an older agent started go on under this one: seen, followed, stopped and swept.

`samples/agent-2aa5f92.pyz` is the agent as of that commit, without pynvml: its launch records have no `reserved_bytes`, and
its supervisors are those that keep running while a newer archive is put beside it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.status_file import read_json
from tests.agent.channel import L1, L2, Channel, has_line, is_alive, open_process, wait_gone

OLDER = Path(__file__).parent / "samples" / "agent-2aa5f92.pyz"


@pytest.fixture
def older(state_root: Path) -> Iterator[Channel]:
    command = [sys.executable, "-I", str(OLDER), "serve", "--controller", "c1", "--state-root", str(state_root)]
    channel, process = open_process(command)
    yield channel
    channel.close_stdin()
    process.wait(10)


@pytest.fixture
def upgraded(older: Channel, agent: Channel, state_root: Path) -> tuple[Channel, dict[str, Any]]:
    """This agent, and the processes of a launch that the older one started: by role."""
    older.launch(L1)
    tree = older.wait_tree(L1)
    record = read_json(str(next(state_root.rglob(f"{L1}/request.json"))))
    assert record is not None
    assert "reserved_bytes" not in record, "the sample has to be older than this agent's record"
    return agent, tree


class TestAnOlderLaunch:
    def test_is_observed_with_its_proofs(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, tree = upgraded
        view = agent.ask("observe")["launches"][0]
        assert (view["launch_id"], view["state"]) == (L1, "running")
        assert {process["pid"] for process in view["processes"]} == {process["pid"] for process in tree.values()}
        assert all(process["proof"] for process in view["processes"])

    def test_is_watched_with_its_log(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, _tree = upgraded
        request = agent.begin("watch", interval_s=60)
        agent.wait_for(request, lambda found: any("log" in answer["body"] for answer in found))
        bodies = agent.events(request)
        assert [view["launch_id"] for body in bodies for view in body.get("launches", [])] == [L1]
        assert "ready" in "".join(body["log"]["text"] for body in bodies if "log" in body)

    def test_is_told_to_its_end_by_a_tail(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, _tree = upgraded
        request = agent.begin("tail", launch_id=L1, offset=0, follow=False)
        agent.finish(request)
        assert "ready" in "".join(event["text"] for event in agent.events(request))

    def test_is_stopped_and_its_supervisor_tells_the_exit_code(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, tree = upgraded
        assert agent.ask("stop", launch_id=L1)["exit_code"] == 0
        wait_gone(*(process["pid"] for process in tree.values()))
        assert agent.ask("status", launch_id=L1)["closed"] is True

    def test_is_swept_as_its_preview_says(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, tree = upgraded
        os.kill(tree["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        named = agent.ask("sweep", preview=True)["orphans"][0]["processes"]
        assert agent.ask("sweep", preview=False, launches=[L1], processes=named)["refused"] == []
        wait_gone(*(process["pid"] for process in tree.values()))

    def test_is_adopted_when_it_is_asked_for_again(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, tree = upgraded
        again = agent.launch(L1)
        assert (again["adopted"], again["pid"]) == (True, tree["api_server"]["pid"])

    def test_holds_its_slot_and_its_fence(self, upgraded: tuple[Channel, dict[str, Any]]) -> None:
        agent, tree = upgraded
        argv = [sys.executable, "-c", "pass"]
        busy = agent.refused("launch", launch_id=L2, instance="i1", slot="s1", argv=argv)
        assert busy["code"] == "SLOT_BUSY"
        agent.attempt = 0
        assert agent.refused("stop", launch_id=L1)["code"] == "STALE_ATTEMPT"
        assert is_alive(tree["api_server"]["pid"])


class TestTheOlderAgent:
    def test_reads_a_launch_of_this_one(self, older: Channel, agent: Channel) -> None:
        """Another worker may still hold a session of it for a minute after the upgrade."""
        agent.launch(L1, reserved_bytes={"cpu": 1})
        agent.wait_tree(L1)
        view = older.ask("status", launch_id=L1)
        assert view["state"] == "running"
        assert has_line(view, "ready")
        assert older.ask("stop", launch_id=L1)["survivors"] == []
