"""The `System` of a simulated host: the same verbs of the real agent run on it."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from hosts.agent.ports import bind_error
from hosts.agent.status_file import Status, write_status
from hosts.agent.system import DeviceUse, HttpAnswer, Process, StartRequest
from simulator.programs import start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.layout import Layout
    from simulator.machine import Machine, SimulatedProcess
    from simulator.spec import HostSpec
    from simulator.vllm.instance import Instance, Surroundings

OWN_ADDRESSES = frozenset({"", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1"})  # noqa: S104 - names, nothing is bound


class SimulatedSystem:
    """hosts.agent.system.System over a Machine. Called from the agent's threads."""

    def __init__(
        self,
        *,
        spec: HostSpec,
        machine: Machine,
        layout: Layout,
        around: Surroundings,
        instances: list[Instance],
    ) -> None:
        self.uid = machine.uid
        self.user = "fleet"
        self.home = str(layout.home)
        self._spec = spec
        self.disk_free = spec.disk_free
        self._machine = machine
        self._layout = layout
        self._around = around
        self._instances = instances

    def boot_id(self) -> str:
        return self._machine.boot_id

    def machine_id(self) -> str:
        return self._machine.machine_id

    def hostname(self) -> str:
        return self._spec.name

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def processes(self) -> list[Process]:
        with self._machine.lock:
            return [process.read() for process in self._machine]

    def process(self, pid: int) -> Process | None:
        with self._machine.lock:
            found = self._machine.find(pid)
            return found.read() if found else None

    def signal(self, pid: int, start_time: int, number: int) -> bool:
        return self._machine.signal(pid, start_time, number)

    def shm_segments(self, pid: int) -> list[str]:
        with self._machine.lock:
            return sorted(name for name, users in self._machine.shm.items() if pid in users)

    def remove_shm(self, name: str) -> bool:
        with self._machine.lock:
            if self._machine.shm.get(name):
                return False
            return self._machine.shm.pop(name, None) is not None

    def start_detached(self, request: StartRequest) -> None:
        """Supervisor and process appear at once; status.json is written as the real supervisor writes it."""
        supervisor = self._machine.spawn(title=f"python3 -I -c … supervise {request.launch_id}", ppid=1, rss=11 << 20)
        status = Status(
            launch_id=request.launch_id,
            state="starting",
            started_at=time.time(),
            supervisor_pid=supervisor.pid,
        )
        write_status(request.directory, status)
        leader = self._machine.spawn(
            title=_title(request.argv),
            ppid=supervisor.pid,
            rss=300 << 20,
            marker=request.env.get("FLEETADMIN_LAUNCH"),
            controller=request.env.get("FLEETADMIN_CONTROLLER"),
        )
        status = replace(status, state="running", pid=leader.pid, sid=leader.sid, start_time=leader.start_time)
        write_status(request.directory, status)
        Path(request.log_path).touch()
        started = threading.Event()
        self._around.loop.call_soon_threadsafe(self._begin, request, leader, supervisor, status, started)
        started.wait(10.0)

    def _begin(
        self,
        request: StartRequest,
        leader: SimulatedProcess,
        supervisor: SimulatedProcess,
        status: Status,
        started: threading.Event,
    ) -> None:
        try:
            instance = start_program(
                spec=self._spec, layout=self._layout, around=self._around, request=request, leader=leader
            )
            if instance is not None:
                self._instances.append(instance)
            _call_after_exit(leader, lambda: self._finish(request, leader, supervisor, status))
        finally:
            started.set()

    def _finish(
        self, request: StartRequest, leader: SimulatedProcess, supervisor: SimulatedProcess, status: Status
    ) -> None:
        """Reap the child as the supervisor does; one that was killed writes nothing."""
        if supervisor.gone:
            return
        ended = replace(
            status,
            state="exited",
            exit_code=leader.exit_code,
            exit_signal=leader.exit_signal,
            ended_at=time.time(),
        )
        if Path(request.directory).is_dir():
            write_status(request.directory, ended)
        self._machine.finish(supervisor, exit_code=0)

    def _own(self, address: str) -> str:
        return self._around.address if address in OWN_ADDRESSES else address

    def bind_error(self, address: str, port: int) -> str | None:
        own = self._own(address)
        if own != self._around.address:
            return "Cannot assign requested address"
        return bind_error(own, port)

    def http(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 10.0,
    ) -> HttpAnswer:
        """Plain HTTP to this host's own address."""
        parts = urlsplit(url)
        target = urlunsplit(parts._replace(netloc=f"{self._own(parts.hostname or '')}:{parts.port or 80}"))
        request = urllib.request.Request(target, data=body, headers=headers or {}, method=method)  # noqa: S310
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        began = time.monotonic()
        try:
            with opener.open(request, timeout=timeout) as answer:
                return HttpAnswer(answer.status, answer.read(), dict(answer.headers), None, time.monotonic() - began)
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, error.read(), dict(error.headers), None, time.monotonic() - began)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return HttpAnswer(None, error=str(reason), seconds=time.monotonic() - began)

    def device_use(self) -> list[DeviceUse]:
        with self._machine.lock:
            return [gpu.read_use() for gpu in self._machine.gpus]

    def gpu_facts(self) -> dict[str, Any]:
        with self._machine.lock:
            if not self._machine.gpus:
                return {
                    "source": "none",
                    "reason": "libnvidia-ml.so.1 is not there, and no nvidia-smi is on the PATH.",
                }
            return {
                "source": "nvml",
                "driver": self._spec.driver,
                "cuda": self._spec.cuda,
                "devices": [gpu.describe() for gpu in self._machine.gpus],
            }

    def vllm_installations(self, roots: Sequence[str]) -> list[dict[str, Any]]:
        found = []
        for installation in self._spec.installations:
            executable = self._layout.executable(installation)
            if not executable.exists():
                continue
            if roots and not any(executable.is_relative_to(root) for root in (*roots, str(self._layout.opt))):
                continue
            found.append(
                {
                    "python": str(executable.parent / "python"),
                    "executable": str(executable),
                    "version": installation.version,
                    "kind": "venv",
                    "torch": installation.torch,
                }
            )
        return found

    def filesystem(self, path: str) -> tuple[str, int, int]:
        Path(path).stat()  # OSError where it is missing, as statvfs says it
        if path.startswith("/dev/shm"):  # noqa: S108 - the question is about the kernel's directory
            return "tmpfs", self._spec.memory // 2, self._spec.memory // 2
        return self._spec.filesystem, self._spec.disk, self.disk_free

    def memory(self) -> tuple[int, int]:
        return self._machine.memory()

    def load_average(self) -> tuple[float, float, float]:
        with self._machine.lock:
            busy = float(sum(1 for process in self._machine if "::" in process.title)) / 4
        return busy, busy, busy

    def cpu(self) -> dict[str, Any]:
        return {"count": self._spec.cpus, "model": "AMD EPYC 9354 32-Core Processor (simulated)"}

    def os_release(self) -> dict[str, str]:
        return {"kernel": "6.1.0-38-amd64", "os": "Debian GNU/Linux 12 (bookworm, simulated)"}

    def session_policy(self) -> dict[str, bool | None]:
        return dict(self._spec.session)


def _title(argv: Sequence[str]) -> str:
    """Put the interpreter of a console script first: `…/bin/python …/bin/vllm serve …`."""
    if argv and Path(argv[0]).name == "vllm":
        return f"{Path(argv[0]).parent / 'python'} {' '.join(argv)}"
    return " ".join(argv)


def _call_after_exit(process: SimulatedProcess, call: Callable[[], None]) -> None:
    before = process.on_exit

    def both() -> None:
        call()
        if before is not None:
            before()

    process.on_exit = both
    if process.gone:
        call()
