"""The controller's own SSH and agent code against simulated hosts: nothing here is scripted."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from hosts import agent_archive
from hosts.agent_session import AgentArchive, AgentRefused, AgentSession, open_session
from hosts.ssh.command import Command
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits, PasswordAuth
from hosts.ssh.errors import SshError
from hosts.ssh.paramiko_runner import ParamikoRunner, connect
from simulator.fleet import Fleet, SimulatedHost, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FENCE = {"controller": "c1", "run": "r1", "attempt": 1}


def build_archive() -> AgentArchive:
    built = agent_archive.build_archive()
    return AgentArchive(built.content, hashlib.sha256(built.content).hexdigest(), built.name)


def open_runner(fleet: Fleet, host: SimulatedHost, **changes: Any) -> ParamikoRunner:
    fields = {
        "address": host.address,
        "port": host.port,
        "user": "fleet",
        "host_key": HostKey.parse(host.host_key_line),
        "auth": KeyAuth(fleet.private_key_path.read_text()),
    }
    return connect(Endpoint(**(fields | changes)), limits=Limits())


@pytest.fixture
def open_agent(fleet: Fleet) -> Iterator[Callable[[str], AgentSession]]:
    opened: list[Any] = []

    def open_one(name: str, controller: str = "c1") -> AgentSession:
        runner = open_runner(fleet, fleet[name])
        session = open_session(runner, archive=build_archive(), controller_id=controller)
        opened.extend((session, runner))
        return session

    yield open_one
    for each in opened:
        each.close()


def launch_args(host: SimulatedHost, launch_id: str, port: int) -> dict[str, Any]:
    argv = [host.vllm, "serve", host.model_path("Qwen3-0.6B"), "--host", host.address, "--port", str(port)]
    return {
        "launch_id": launch_id,
        "instance": launch_id + "-instance",
        "slot": launch_id + "-slot",
        "argv": [*argv, "--served-model-name", "qwen", "--max-model-len", "4096"],
        "env": {"CUDA_VISIBLE_DEVICES": host.machine.gpus[0].uuid} if host.machine.gpus else {},
        "secret_env": {},
        "address": host.address,
        "port": port,
        "devices": [gpu.uuid for gpu in host.machine.gpus[:1]],
        "model_path": host.model_path("Qwen3-0.6B"),
        "min_free_disk": 1,
    }


class TestLaunch:
    @pytest.mark.parametrize("name", ["gpu-a", "cpu-box"])
    def test_starts_logs_answers_and_stops_without_a_trace(self, fleet, open_agent, find_free_port, name):
        host, session = fleet[name], open_agent(name)
        port = find_free_port(host)
        started = session.request("launch", launch_args(host, f"e2e-{name}", port), fence=FENCE, timeout=20)
        text, ready = "", False
        with session.stream("tail", {"launch_id": started["launch_id"], "offset": 0, "follow": True}) as lines:
            for event in lines:
                text += event["text"]
                if ready := "Application startup complete." in text:
                    break
        assert ready
        probe = {"address": host.address, "port": port, "served_name": "qwen", "task": "generate"}
        found = session.request("probe", probe, timeout=20)
        assert (found["health"], found["answer"]["ok"]) == (200, True)
        stop = {"launch_id": started["launch_id"], "grace_s": 10, "second_term_s": 5, "reason": "test"}
        stopped = session.request("stop", stop, fence=FENCE, timeout=30)
        assert (stopped["exit_code"], stopped["survivors"]) == (0, [])
        seen = session.request("observe", {}, timeout=10)
        view = next(each for each in seen["launches"] if each["launch_id"] == started["launch_id"])
        assert (view["state"], view["processes"], view["closed"]) == ("exited", [], True)
        assert all(device["used"] == 0 for device in seen["devices"])
        assert not [each for each in host.machine if "vllm" in each.title.lower()]

    def test_sweeps_what_a_killed_api_server_left(self, fleet, open_agent, find_free_port):
        host, session = fleet["gpu-a"], open_agent("gpu-a")
        args = launch_args(host, "e2e-orphans", find_free_port(host))
        started = session.request("launch", args, fence=FENCE, timeout=20)
        assert wait_for(lambda: "startup complete" in open(started["log_path"]).read(), seconds=15)  # noqa: SIM115, PTH123
        assert host.kill("/bin/vllm serve")
        orphans = session.request("sweep", {"preview": True}, timeout=10)["orphans"]
        assert [each["launch_id"] for each in orphans] == ["e2e-orphans"]
        assert orphans[0]["device_memory"] > 0
        sweep = {"preview": False, "launches": ["e2e-orphans"]}
        swept = session.request("sweep", sweep, fence=FENCE, timeout=40)["swept"]
        assert [each["launch_id"] for each in swept] == ["e2e-orphans"]
        assert host.machine.gpus[0].used == 0

    def test_stops_one_that_swallowed_the_first_sigterm(self, fleet, open_agent, find_free_port):
        host, session = fleet["gpu-a"], open_agent("gpu-a")
        host.around.speed = 20
        args = launch_args(host, "e2e-second", find_free_port(host))
        started = session.request("launch", args, fence=FENCE, timeout=20)
        assert wait_for(lambda: "Initializing a V1" in open(started["log_path"]).read(), seconds=15)  # noqa: SIM115, PTH123
        stop = {"launch_id": "e2e-second", "grace_s": 10, "second_term_s": 0.1, "reason": "test"}
        with session.stream("stop", stop, fence=FENCE) as events:
            steps = [event["step"] for event in events]
        assert "second_term" in steps

    def test_gives_a_new_boot_id_after_a_reboot(self, fleet, open_agent, find_free_port):
        host, session = fleet["cpu-box"], open_agent("cpu-box")
        args = launch_args(host, "e2e-reboot", find_free_port(host))
        session.request("launch", args, fence=FENCE, timeout=20)
        before = session.boot_id
        host.reboot()
        assert wait_for(lambda: not session.alive)
        again = open_agent("cpu-box")
        assert again.boot_id != before
        assert not [each for each in host.machine if "vllm" in each.title.lower()]


class TestFacts:
    def test_describes_the_machine(self, fleet, open_agent):
        host = fleet["gpu-a"]
        facts = open_agent("gpu-a").request("facts", {"model_roots": [host.model_root], "vllm_roots": []}, timeout=20)
        assert facts["hostname"] == "gpu-a"
        assert [gpu["name"] for gpu in facts["gpus"]["devices"]] == ["NVIDIA L4"] * 2
        assert [each["version"] for each in facts["vllm"]] == ["0.25.1", "0.32.0"]
        assert {each["path"].rsplit("/", 1)[1]: each["weight_bytes"] for each in facts["models"]} == {
            "Qwen3-0.6B": 1_503_264_768,
            "Llama-3.1-8B": 16_060_522_496,
        }

    def test_has_no_accelerator_on_a_cpu_host(self, open_agent):
        facts = open_agent("cpu-box").request("facts", {"model_roots": [], "vllm_roots": []}, timeout=20)
        assert facts["gpus"]["source"] == "none"


class TestSignIn:
    def test_refuses_a_host_without_python(self, open_agent):
        with pytest.raises(AgentRefused) as refused:
            open_agent("no-python")
        assert refused.value.code == "NO_PYTHON"

    def test_names_a_python_that_is_too_old(self, open_agent):
        with pytest.raises(AgentRefused) as refused:
            open_agent("old-python")
        assert refused.value.code == "PYTHON_TOO_OLD"
        assert "3.6.8" in refused.value.message

    def test_refuses_a_state_root_on_a_network_file_system(self, fleet, open_agent, find_free_port):
        host, session = fleet["nfs-home"], open_agent("nfs-home")
        with pytest.raises(AgentRefused) as refused:
            session.request("launch", launch_args(host, "e2e-nfs", find_free_port(host)), fence=FENCE, timeout=20)
        assert refused.value.code == "STATE_ROOT_NOT_LOCAL"

    def test_takes_a_password_where_the_host_has_one(self, fleet):
        runner = open_runner(fleet, fleet["cpu-box"], auth=PasswordAuth("hunter2"))
        assert runner.run(Command(argv=("/bin/sh", "-c", "echo $HOME"))).text.strip().endswith("cpu-box/home")
        runner.close()

    @pytest.mark.parametrize(
        "changes",
        [{"auth": PasswordAuth("wrong")}, {"user": "root"}],
        ids=["wrong password", "other user"],
    )
    def test_refuses_others(self, fleet, changes):
        with pytest.raises(SshError):
            open_runner(fleet, fleet["cpu-box"], **changes)

    def test_keeps_its_host_key_apart_from_others(self, fleet):
        keys = {host.host_key_line for host in fleet}
        assert len(keys) == len(list(fleet))
        with pytest.raises(SshError):
            open_runner(fleet, fleet["gpu-a"], host_key=HostKey.parse(fleet["h200"].host_key_line))

    def test_shell_has_nothing_of_the_developer(self, fleet):
        runner = open_runner(fleet, fleet["gpu-a"])
        result = runner.run(Command(argv=("env",)))
        names = {line.split("=")[0] for line in result.text.splitlines()}
        assert names <= {
            "HOME",
            "PATH",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "TMPDIR",
            "PWD",
            "_",
            "OLDPWD",
            "SHLVL",
        }
        runner.close()
