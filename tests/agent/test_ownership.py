from __future__ import annotations

from dataclasses import replace

import pytest

from hosts.agent.ownership import Identity, find_leader, owned_processes, role_of
from hosts.agent.system import Process

LEADER = Process(
    pid=100,
    ppid=99,
    pgid=100,
    sid=100,
    uid=1000,
    state="S",
    start_time=5000,
    title="vllm serve",
    rss=1,
    marker="L",
)
ENGINE = replace(LEADER, pid=101, ppid=100, start_time=5400, title="VLLM::EngineCore", marker=None)
IDENTITY = Identity("L", leader_pid=100, leader_start=5000, sid=100)

OURS = {
    "the leader": LEADER,
    "a child in its session whose marker setproctitle wiped": ENGINE,
    "an orphan": replace(ENGINE, ppid=1),
    "a child that made a session of its own but carries the marker": replace(ENGINE, sid=101, marker="L"),
    "a child of the same tick": replace(ENGINE, start_time=5000),
    "a stopped process": replace(ENGINE, state="T"),
}
NOT_OURS = {
    "another user's process in the session": replace(ENGINE, uid=1001),
    "another user's process with our marker": replace(LEADER, uid=1001),
    "one that started before the leader": replace(ENGINE, start_time=4999),
    "one of another session with a similar title": replace(ENGINE, sid=200),
    "one with the marker of another launch": replace(ENGINE, marker="M"),
    "a zombie": replace(ENGINE, state="Z"),
}


class TestOwnedProcesses:
    @pytest.mark.parametrize("name", OURS)
    def test_has(self, name: str) -> None:
        assert owned_processes(IDENTITY, [OURS[name]], uid=1000) == [OURS[name]]

    @pytest.mark.parametrize("name", NOT_OURS)
    def test_has_not(self, name: str) -> None:
        assert owned_processes(IDENTITY, [NOT_OURS[name]], uid=1000) == []

    def test_ends_with_the_session_when_its_number_was_given_to_another(self) -> None:
        stranger = replace(LEADER, start_time=90000, marker=None, title="screen")
        child = replace(ENGINE, start_time=90001, ppid=100)
        assert owned_processes(IDENTITY, [stranger, child], uid=1000) == []

    def test_ends_for_the_session_when_the_launch_was_closed(self) -> None:
        marked = replace(ENGINE, pid=102, marker="L")
        assert owned_processes(replace(IDENTITY, closed=True), [ENGINE, marked], uid=1000) == [marked]

    def test_goes_by_the_marker_alone_while_the_leader_is_not_known(self) -> None:
        unknown = Identity("L")
        assert owned_processes(unknown, [LEADER, ENGINE], uid=1000) == [LEADER]
        assert find_leader(unknown, [LEADER]) == LEADER

    def test_keeps_the_session_of_a_leader_that_is_a_zombie(self) -> None:
        dead = replace(LEADER, state="Z", marker=None)
        assert owned_processes(IDENTITY, [dead, ENGINE], uid=1000) == [ENGINE]
        assert find_leader(IDENTITY, [ENGINE]) is None


class TestRole:
    @pytest.mark.parametrize(
        ("title", "role"),
        [
            ("VLLM::EngineCore", "engine_core"),
            ("VLLM::EngineCore_DP0", "engine_core"),
            ("fleet-abc::Worker_TP1", "worker"),
            ("VLLM::Worker_PP1_TP0", "worker"),
            ("VLLM::DPCoordinator", "dp_coordinator"),
            ("VLLM::APIServer_0", "api_server"),
            (
                "/v/bin/python -c from multiprocessing.resource_tracker import main;main(43)",
                "resource_tracker",
            ),
            ("/v/bin/python -c from multiprocessing.spawn import spawn_main", "other"),
            ("/v/bin/python /v/bin/vllm serve --worker-cls Worker", "other"),
        ],
    )
    def test_is_read_from_the_title(self, title: str, role: str) -> None:
        assert role_of(replace(ENGINE, title=title), leader_pid=100) == role

    def test_of_the_leader_is_the_api_server(self) -> None:
        assert role_of(LEADER, leader_pid=100) == "api_server"
