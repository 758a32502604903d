"""A fleet of simulated hosts in one process: one event loop in a thread of its own, or the caller's loop.

with simulated_fleet(tmp_path, hosts=[HostSpec(name="gpu-a", gpus=("L4",))], speed=50) as fleet:
    fleet["gpu-a"].address, fleet["gpu-a"].port, fleet.private_key_path
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.devices import GPU_MODELS, Gpu
from simulator.faults import FAULTS, Link
from simulator.keys import load_or_make_key
from simulator.layout import Layout, lay_out
from simulator.machine import Machine
from simulator.spec import PRESETS, HostSpec
from simulator.ssh_server import HostServer
from simulator.system import SimulatedSystem
from simulator.vllm.instance import Instance, Surroundings
from simulator.vllm.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

DEFAULT_PORT = 2222
USER = "fleet"


@dataclass
class SimulatedHost:
    """One host: where it is reached, what it is made of, and what a test may do to it."""

    spec: HostSpec
    address: str
    port: int
    layout: Layout
    machine: Machine
    around: Surroundings
    system: SimulatedSystem
    server: HostServer
    host_key_line: str
    link: Link
    instances: list[Instance] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def model_root(self) -> str:
        return str(self.layout.models)

    def model_path(self, name: str) -> str:
        return str(self.layout.models / name)

    @property
    def vllm(self) -> str:
        """The executable of the first installation."""
        return str(self.layout.executable(self.spec.installations[0]))

    def kill(self, title: str, number: int = signal.SIGKILL) -> list[int]:
        """Signal every process whose title contains `title`, as its user could. The pids that got it."""
        found = self.machine.find_by_title(title)
        return [each.pid for each in found if self.machine.signal(each.pid, each.start_time, number)]

    def reboot(self) -> None:
        """All processes end, connections break, a new boot id; the SSH server answers again at once."""
        self.machine.reboot()
        self.around.loop.call_soon_threadsafe(self.server.disconnect_all)

    def disconnect(self) -> None:
        """Cut every SSH connection without a word."""
        self.around.loop.call_soon_threadsafe(self.server.disconnect_all)

    def reset(self, count: int) -> None:
        """Reset every connection that is open, and the next `count` ones before a word."""

        def cut() -> None:
            self.link.resets = count
            self.server.disconnect_all()

        self.around.loop.call_soon_threadsafe(cut)

    def go_silent(self, seconds: float) -> None:
        """Stop answering, on open connections and new ones, without closing any."""
        loop = self.around.loop
        loop.call_soon_threadsafe(lambda: setattr(self.link, "silent_until", loop.time() + seconds))

    def fill_disk(self) -> None:
        """Leave no byte free on the host's disk."""
        self.system.disk_free = 0

    def occupy(self, gpu: int, size: int, *, title: str = "python train.py") -> int:
        """Let somebody else's process (another user) hold `size` bytes of a card. Its pid."""
        with self.machine.lock:
            process = self.machine.spawn(title=title, ppid=1, rss=2 << 30, uid=self.machine.uid + 1)
            self.machine.gpus[gpu].allocate(pid=process.pid, size=size)
        return process.pid

    def fail_next(self, fault: str) -> None:
        """Let the next vLLM start go wrong in this way. ValueError where the fault is unknown."""
        if fault not in FAULTS:
            raise ValueError(f"Unknown fault {fault!r}; known: {', '.join(sorted(FAULTS))}")
        self.around.faults.append(fault)

    def describe(self) -> dict[str, Any]:
        """Give what a controller needs to enrol this host."""
        return {
            "name": self.name,
            "address": self.address,
            "port": self.port,
            "user": USER,
            "host_key": self.host_key_line,
            "password": self.spec.password,
            "model_roots": [self.model_root],
            "vllm_roots": [str(self.layout.opt)],
            "home": str(self.layout.home),
        }


class Fleet:
    """Hosts by name. `start()` and `stop()` belong to the event loop, the rest to any thread."""

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[HostSpec],
        speed: float = 1.0,
        port_base: int = DEFAULT_PORT,
        network: int = 77,
    ) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.speed = speed
        self._specs = tuple(hosts)
        self._port = port_base
        self._network = network
        self._hosts: dict[str, SimulatedHost] = {}
        self.client_key = load_or_make_key(self.directory / "keys" / "id_ed25519")

    def __getitem__(self, name: str) -> SimulatedHost:
        return self._hosts[name]

    def __iter__(self) -> Iterator[SimulatedHost]:
        return iter(self._hosts.values())

    @property
    def private_key_path(self) -> Path:
        return self.directory / "keys" / "id_ed25519"

    def describe(self) -> list[dict[str, Any]]:
        return [host.describe() | {"private_key": str(self.private_key_path)} for host in self]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for index, spec in enumerate(self._specs):
            self._hosts[spec.name] = await self._start_host(spec, f"127.{self._network}.0.{index + 1}", loop)

    async def _start_host(self, spec: HostSpec, address: str, loop: asyncio.AbstractEventLoop) -> SimulatedHost:
        layout = lay_out(spec, self.directory / spec.name)
        gpus = [
            Gpu(
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{spec.name}.{index}')}",
                index=index,
                model=GPU_MODELS[kind],
            )
            for index, kind in enumerate(spec.gpus)
        ]
        machine = Machine(name=spec.name, memory_total=spec.memory, gpus=gpus, machine_id=spec.machine_id)
        around = Surroundings(machine=machine, address=address, speed=self.speed, loop=loop, pace=Pace(cores=spec.cpus))
        instances: list[Instance] = []
        system = SimulatedSystem(spec=spec, machine=machine, layout=layout, around=around, instances=instances)
        key = load_or_make_key(layout.host_key)
        link = Link()
        server = HostServer(
            spec=spec, layout=layout, system=system, host_key=key, client_key=self.client_key, link=link
        )
        port = await server.listen(address, self._port)
        return SimulatedHost(
            spec=spec,
            address=address,
            port=port,
            layout=layout,
            machine=machine,
            around=around,
            system=system,
            server=server,
            host_key_line=key.export_public_key().decode().strip(),
            link=link,
            instances=instances,
        )

    async def stop(self) -> None:
        for host in self:
            await host.server.close()
            for instance in host.instances:
                instance.cancel()
        await asyncio.sleep(0)


@contextlib.contextmanager
def simulated_fleet(
    directory: Path,
    *,
    hosts: Sequence[HostSpec] | str = "one",
    speed: float = 50.0,
    port_base: int = 0,
    network: int = 77,
) -> Iterator[Fleet]:
    """Run a fleet in a thread and loop of its own. `hosts` may name a preset; port 0 picks free ones."""
    specs = PRESETS[hosts] if isinstance(hosts, str) else tuple(hosts)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_loop, args=(loop,), name="simulated-fleet", daemon=True)
    thread.start()
    fleet = Fleet(directory, hosts=specs, speed=speed, port_base=port_base, network=network)
    try:
        _call(loop, fleet.start())
        yield fleet
    finally:
        _call(loop, fleet.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))


def _call(loop: asyncio.AbstractEventLoop, work: Any) -> None:
    future: Future[None] = asyncio.run_coroutine_threadsafe(work, loop)
    future.result(30)


def wait_for(condition: Callable[[], bool], *, seconds: float = 10.0) -> bool:
    """Poll until the condition holds; False after `seconds`. For tests and the demo."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
