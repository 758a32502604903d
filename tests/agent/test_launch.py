# ruff: noqa: S104 - ports are asked for, nothing listens on them
from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.linux import LinuxSystem
from hosts.agent.locks import is_locked
from hosts.agent.supervisor import SUPERVISOR_LOCK
from hosts.agent.system import StartRequest
from tests.agent.channel import (
    L0,
    L1,
    L2,
    STAND_IN,
    Channel,
    agent_command,
    by_role,
    has_line,
    is_alive,
    open_process,
    wait_gone,
)
from tests.agent.conftest import Opener


class TestLaunch:
    def test_starts_the_process_in_a_session_of_its_own(self, agent: Channel) -> None:
        started = agent.launch(L1)
        assert (started["state"], started["adopted"]) == ("running", False)
        assert started["sid"] == started["pid"]
        assert started["boot_id"] == agent.hello["boot_id"]
        tree = agent.wait_tree(L1)
        assert set(tree) == {"api_server", "engine_core", "resource_tracker"}
        assert {process["sid"] for process in tree.values()} == {started["sid"]}
        assert tree["engine_core"]["title"].startswith("VLLM::EngineCore")

    def test_adopts_the_running_one_when_asked_twice(self, agent: Channel) -> None:
        first, second = agent.launch(L1), agent.launch(L1)
        assert (first["adopted"], second["adopted"]) == (False, True)
        assert {**first, "adopted": True} == second

    def test_starts_one_when_several_channels_ask_at_the_same_moment(self, open_agent: Opener) -> None:
        channels = [open_agent() for _ in range(4)]
        found: list[dict[str, Any]] = []
        threads = [threading.Thread(target=lambda c=channel: found.append(c.launch(L1))) for channel in channels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer["adopted"] for answer in found) == [False, True, True, True]
        assert len({answer["pid"] for answer in found}) == 1

    def test_gives_the_process_its_marker_and_a_private_temporary_directory(self, agent: Channel) -> None:
        names = [
            "FLEETADMIN_LAUNCH",
            "FLEETADMIN_CONTROLLER",
            "SPT_NOENV",
            "VLLM_NO_USAGE_STATS",
            "VLLM_PORT",
            "MINE",
        ]
        options = [word for name in [*names, "TMPDIR", "VLLM_RPC_BASE_PATH"] for word in ("--say-env", name)]
        agent.launch(L1, *options, env={"VLLM_PORT": "9", "MINE": "yes", "SPT_NOENV": "0"})
        view = agent.wait_status(L1, lambda view: has_line(view, "ready"))
        lines = dict(line.split("=") for line in Path(view["log_path"]).read_text().splitlines() if "=" in line)
        assert [lines[name] for name in names] == [L1, "c1", "1", "1", "None", "yes"]
        assert lines["TMPDIR"] == lines["VLLM_RPC_BASE_PATH"]
        assert Path(lines["TMPDIR"]).stat().st_mode & 0o777 == 0o700
        agent.ask("stop", launch_id=L1)
        assert not Path(lines["TMPDIR"]).exists()

    def test_keeps_secrets_out_of_files_and_command_lines(self, agent: Channel, state_root: Path) -> None:
        agent.launch(L1, "--say-env", "HF_TOKEN", secret_env={"HF_TOKEN": "hf_very_secret"})
        agent.wait_tree(L1)
        written = b"".join(
            path.read_bytes() for path in state_root.rglob("*") if path.is_file() and path.suffix != ".log"
        )
        assert b"HF_TOKEN" in written
        assert b"hf_very_secret" not in written
        lines = list(Path("/proc").glob("[0-9]*/cmdline"))
        assert all(b"hf_very_secret" not in path.read_bytes() for path in lines if path.exists())
        (supervisor,) = [p for p in LinuxSystem().processes() if p.title.endswith(f"supervise {L1}")]
        assert b"hf_very_secret" not in Path(f"/proc/{supervisor.pid}/environ").read_bytes()

    def test_writes_the_exit_code_of_a_process_that_ends_by_itself(self, agent: Channel) -> None:
        agent.launch(L1, "--exit-code", "3", "--exit-after", "0.3")
        view = agent.wait_status(L1, lambda view: view["state"] == "exited")
        assert (view["exit_code"], view["exit_signal"], view["closed"]) == (3, None, True)

    def test_lives_on_when_the_agent_is_killed(self, state_root: Path) -> None:
        channel, process = open_process(agent_command(state_root))
        started = channel.launch(L1)
        channel.begin("tail", launch_id=L1)
        process.kill()
        process.wait()
        assert is_alive(started["pid"])
        again, second = open_process(agent_command(state_root))
        assert again.launch(L1)["adopted"] is True
        again.ask("stop", launch_id=L1)
        wait_gone(started["pid"])
        again.close_stdin()
        assert second.wait(10) == 0

    def test_goes_on_after_an_agent_that_died_before_its_supervisor_began(
        self, agent: Channel, state_root: Path
    ) -> None:
        agent.launch(L0, "--exit-code", "0")
        view = agent.wait_status(L0, lambda view: view["state"] == "exited")
        assert view["closed"]
        (directory,) = state_root.glob("*/*/launches")
        record = json.loads((directory / L0 / "request.json").read_text())
        (directory / L1).mkdir(mode=0o700)
        (directory / L1 / "request.json").write_text(json.dumps({**record, "launch_id": L1}))
        assert agent.ask("status", launch_id=L1)["state"] == "unknown"
        assert agent.launch(L1)["adopted"] is False
        agent.wait_tree(L1)

    def test_never_has_two_supervisors(self, agent: Channel, state_root: Path) -> None:
        """Whatever the agents do: the second supervisor finds the lock or the status and goes."""
        started = agent.launch(L1)
        (directory,) = state_root.glob("*/*/launches/" + L1)
        assert is_locked(str(directory / SUPERVISOR_LOCK))
        request = StartRequest(L1, str(directory), [sys.executable, STAND_IN], {}, started["log_path"])
        LinuxSystem().start_detached(request)
        assert agent.ask("status", launch_id=L1)["pid"] == started["pid"]
        agent.ask("stop", launch_id=L1)
        LinuxSystem().start_detached(request)
        view = agent.ask("status", launch_id=L1)
        assert (view["pid"], view["state"]) == (started["pid"], "exited")


class TestLaunchRefuses:
    def test_a_second_launch_in_one_slot(self, agent: Channel) -> None:
        pid = agent.launch(L1)["pid"]
        refusal = agent.refused("launch", launch_id=L2, instance="i1", slot="s1", argv=["/bin/sleep", "1"])
        assert refusal["code"] == "SLOT_BUSY"
        assert refusal["numbers"]["launch_id"] == L1
        assert pid in refusal["numbers"]["pids"]

    def test_a_slot_where_only_orphans_are_left(self, agent: Channel) -> None:
        agent.launch(L1)
        os.kill(agent.wait_tree(L1)["api_server"]["pid"], signal.SIGKILL)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        assert agent.refused("launch", launch_id=L2, instance="i", slot="s1", argv=["/bin/true"])["code"] == "SLOT_BUSY"
        assert (
            agent.refused("launch", launch_id=L1, instance="i", slot="s1", argv=["/bin/true"])["code"]
            == "LAUNCH_CLOSED"
        )

    def test_an_id_that_already_ran(self, agent: Channel) -> None:
        agent.launch(L1, "--exit-code", "2")
        agent.wait_status(L1, lambda view: view["state"] == "exited")
        refusal = agent.refused("launch", launch_id=L1, instance="i", slot="s1", argv=["/bin/true"])
        assert (refusal["code"], refusal["numbers"]["exit_code"]) == ("LAUNCH_CLOSED", 2)

    def test_a_lower_attempt_than_the_slot_has_seen(self, agent: Channel, open_agent: Opener) -> None:
        agent.attempt = 7
        agent.launch(L1)
        late = open_agent()
        late.attempt = 6
        for verb, args in (
            ("launch", {"launch_id": L1, "instance": "i1", "slot": "s1", "argv": ["/bin/true"]}),
            ("stop", {"launch_id": L1}),
            ("signal", {"launch_id": L1, "pid": 2, "start_time": 0, "signal": "TERM"}),
        ):
            refusal = late.refused(verb, **args)
            assert (refusal["code"], refusal["numbers"]["highest"]) == ("STALE_ATTEMPT", 7), verb
        assert agent.ask("status", launch_id=L1)["state"] == "running"

    def test_a_request_without_a_fence_or_with_a_foreign_one(self, agent: Channel) -> None:
        line = {"v": 1, "id": "x", "verb": "stop", "args": {"launch_id": L1}}
        agent.send_raw(json.dumps(line).encode())
        assert agent.finish("x")[-1]["body"]["code"] == "FENCE_MISSING"
        agent.controller = "c2"
        assert agent.refused("stop", launch_id=L1)["code"] == "CONTROLLER_MISMATCH"

    @pytest.mark.parametrize("listening", [True, False])
    def test_a_port_that_another_socket_has(self, agent: Channel, listening: bool) -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            if listening:
                other.listen()
            port = other.getsockname()[1]
            argv = ["/bin/sleep", "9"]
            refusal = agent.refused(
                "launch", launch_id=L1, instance="i", slot="s", argv=argv, address="0.0.0.0", port=port
            )
        assert (refusal["code"], refusal["numbers"]["port"]) == ("PORT_TAKEN", port)
        assert agent.refused("status", launch_id=L1)["code"] == "LAUNCH_UNKNOWN"

    def test_the_port_of_another_live_launch(self, agent: Channel) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]
        agent.launch(L1, port=port)  # holds no socket: still imports
        refusal = agent.refused("launch", launch_id=L2, instance="i", slot="s2", argv=["/bin/true"], port=port)
        assert refusal["code"] == "PORT_TAKEN"

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            ({"argv": ["/nonexistent/vllm", "serve"]}, "EXECUTABLE_MISSING"),
            ({"argv": ["no-such-program"]}, "EXECUTABLE_MISSING"),
            ({"argv": ["bin/sleep"]}, "EXECUTABLE_MISSING"),
            ({"argv": ["/etc/passwd"]}, "EXECUTABLE_MISSING"),
            ({"model_path": "/nonexistent/model"}, "MODEL_MISSING"),
            ({"cwd": "/nonexistent"}, "CWD_MISSING"),
            ({"min_free_disk": 1 << 60}, "DISK_FULL"),
            ({"argv": []}, "BAD_REQUEST"),
            ({"argv": "/bin/true"}, "BAD_REQUEST"),
            ({"launch_id": "../../etc"}, "BAD_REQUEST"),
            ({"slot": "a/b"}, "BAD_REQUEST"),
            ({"instance": ".hidden"}, "BAD_REQUEST"),
            ({"env": {"A": 1}}, "BAD_REQUEST"),
            ({"env": {"A=B": "x"}}, "BAD_REQUEST"),
            ({"port": 70000}, "BAD_REQUEST"),
        ],
    )
    def test_what_cannot_be_started(self, agent: Channel, changed: dict[str, Any], code: str) -> None:
        args = {"launch_id": L1, "instance": "i", "slot": "s", "argv": ["/bin/sleep", "5"], **changed}
        refusal = agent.refused("launch", **args)
        assert refusal["code"] == code
        assert refusal["message"].endswith(".")
        assert refusal["next_step"]
        assert agent.ask("observe")["launches"] == []

    def test_a_program_that_the_kernel_cannot_run(self, agent: Channel, tmp_path: Path) -> None:
        program = tmp_path / "vllm"
        program.write_text("#!/nonexistent/python\n")
        program.chmod(0o700)
        refusal = agent.refused("launch", launch_id=L1, instance="i", slot="s", argv=[str(program)])
        assert refusal["code"] == "START_FAILED"
        assert agent.ask("status", launch_id=L1)["state"] == "exited"

    @pytest.mark.parametrize("linger", [False, True, None])
    def test_a_host_where_the_logout_kills(self, open_agent: Opener, linger: bool | None) -> None:
        class Killing(LinuxSystem):
            def session_policy(self) -> dict[str, bool | None]:
                return {"kill_user_processes": True, "linger": linger, "remove_ipc": None}

        refusal = open_agent(Killing()).refused("launch", launch_id=L1, instance="i", slot="s", argv=["/bin/true"])
        assert refusal["code"] == "LOGOUT_KILLS"
        assert "KillUserProcesses=no" in refusal["next_step"]

    def test_nothing_because_of_another_controllers_slot_of_that_name(self, agent: Channel, open_agent: Opener) -> None:
        agent.launch(L1)
        other = open_agent(controller="c2")
        other.launch(L2)
        seen = other.ask("observe")
        assert [view["launch_id"] for view in seen["launches"]] == [L2]
        assert [view["launch_id"] for view in seen["other"]] == [L1]
        assert by_role(seen["other"][0])["api_server"]["pid"]
        assert other.refused("stop", launch_id=L1)["code"] == "NOT_OURS"


class TestRoots:
    """Models and vLLM lie below the directories an administrator allowed, after links are followed."""

    def test_refuses_a_link_that_leads_outside(self, tmp_path):
        import pytest

        from hosts.agent.launch import _refuse_outside
        from hosts.agent.refusal import Refusal

        (tmp_path / "allowed").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "allowed" / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(Refusal) as refusal:
            _refuse_outside(str(tmp_path / "allowed" / "link"), [str(tmp_path / "allowed")], what="model")
        assert refusal.value.code == "PATH_OUTSIDE_ROOTS"

    def test_takes_what_lies_below_and_no_name_that_only_begins_alike(self, tmp_path):
        import pytest

        from hosts.agent.launch import _refuse_outside
        from hosts.agent.refusal import Refusal

        (tmp_path / "models" / "a").mkdir(parents=True)
        (tmp_path / "models-of-others").mkdir()
        _refuse_outside(str(tmp_path / "models" / "a"), [str(tmp_path / "models")], what="model")
        with pytest.raises(Refusal):
            _refuse_outside(str(tmp_path / "models-of-others"), [str(tmp_path / "models")], what="model")
