"""A fleet for all tests of this folder, and a way to start vLLM on a host without SSH."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hosts.agent.status_file import Status, read_status
from hosts.agent.system import StartRequest
from simulator.fleet import Fleet, SimulatedHost, simulated_fleet, wait_for
from simulator.spec import CPU_VLLM, QWEN3, HostSpec, InstallationSpec, ModelSpec
from tests.addresses import loopback_network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from simulator.machine import SimulatedProcess

SPEED = 150.0
NEW_VLLM = InstallationSpec(name="vllm-new", version="0.32.0")
NO_WEIGHTS = ModelSpec("no-weights", QWEN3.config, 0, shards=0)
HOSTS = (
    HostSpec(name="gpu-a", gpus=("L4", "L4"), installations=(InstallationSpec(), NEW_VLLM)),
    HostSpec(name="h200", gpus=("H200",), models=(QWEN3, NO_WEIGHTS), memory=512 << 30),
    HostSpec(name="cpu-box", installations=(CPU_VLLM,), models=(QWEN3,), memory=64 << 30, password="hunter2"),
    HostSpec(name="no-python", python=False, installations=(), models=()),
    HostSpec(name="old-python", old_python="3.6.8", installations=(), models=()),
    HostSpec(name="nfs-home", filesystem="nfs4", models=(QWEN3,)),
)
_numbers = itertools.count(1)


@dataclass
class Started:
    """One start on a host, seen from outside."""

    host: SimulatedHost
    launch_id: str
    port: int
    directory: Path
    log_path: Path

    @property
    def status(self) -> Status:
        status = read_status(str(self.directory))
        assert status is not None
        return status

    @property
    def log(self) -> str:
        return self.log_path.read_bytes().decode("utf-8")  # read_text would turn CR into LF

    @property
    def processes(self) -> list[SimulatedProcess]:
        return [process for process in self.host.machine if process.sid == self.status.sid]

    @property
    def titles(self) -> list[str]:
        return sorted(process.title.split("/")[-1].split()[0] for process in self.processes)

    def find(self, text: str) -> SimulatedProcess:
        return next(process for process in self.processes if text in process.title)

    @property
    def leader(self) -> SimulatedProcess:
        found = self.host.machine.find(self.status.pid or 0)
        assert found is not None
        return found

    def wait_ready(self) -> Started:
        assert wait_for(lambda: "Application startup complete." in self.log, seconds=15), self.log[-3000:]
        return self

    def wait_line(self, text: str) -> Started:
        assert wait_for(lambda: text in self.log, seconds=15), self.log[-3000:]
        return self

    def wait_exit(self) -> Status:
        assert wait_for(lambda: self.status.state == "exited", seconds=15), self.log[-3000:]
        return self.status

    def send(self, title: str, number: int) -> None:
        process = self.leader if title == "api" else self.find(title)
        assert self.host.machine.signal(process.pid, process.start_time, number)

    def ask(self, method: str, path: str, body: Any = None, *, timeout: float = 5.0, **headers: str) -> tuple[int, Any]:
        """Status and body; JSON where it is JSON."""
        connection = http.client.HTTPConnection(self.host.address, self.port, timeout=timeout)
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = (answer.getheader("content-type") or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()


class Launcher:
    """Starts vLLM through the simulated System, and clears up afterwards."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        self.fleet = fleet
        self._directory = directory
        self._started: list[Started] = []

    def start(
        self,
        name: str,
        *words: str,
        model: str = "Qwen3-0.6B",
        env: dict[str, str] | None = None,
        vllm: str | None = None,
        port: int | None = None,
        speed: float = SPEED,
    ) -> Started:
        """`speed` is for tests that act within a phase."""
        host = self.fleet[name]
        host.around.speed = speed
        launch_id = f"launch-{next(_numbers)}"
        directory = self._directory / launch_id
        directory.mkdir()
        number = port or find_port(host.address)
        path = model if model.startswith(("/", "hub")) else host.model_path(model)
        argv = [vllm or host.vllm, "serve", path, "--host", host.address, "--port", str(number)]
        argv += [] if "--max-model-len" in words else ["--max-model-len", "4096"]
        argv += words
        environment = {"SPT_NOENV": "1", "FLEETADMIN_LAUNCH": launch_id, "FLEETADMIN_CONTROLLER": "c1"}
        request = StartRequest(
            launch_id=launch_id,
            directory=str(directory),
            argv=argv,
            env=environment | (env or {}),
            log_path=str(directory / "log"),
        )
        host.system.start_detached(request)
        started = Started(host, launch_id, number, directory, directory / "log")
        self._started.append(started)
        return started

    def clear(self) -> None:
        for started in self._started:
            for process in started.processes:
                started.host.machine.finish(process, exit_signal=9)
            started.host.around.faults.clear()
            started.host.machine.shm.clear()


def find_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with simulated_fleet(
        tmp_path_factory.mktemp("fleet"), hosts=HOSTS, speed=SPEED, network=loopback_network()
    ) as running:
        yield running


@pytest.fixture
def launcher(fleet: Fleet, tmp_path: Path) -> Iterator[Launcher]:
    found = Launcher(fleet, tmp_path)
    yield found
    found.clear()


@pytest.fixture
def find_free_port():
    return lambda host: find_port(host.address)
