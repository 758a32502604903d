"""The machine behind a simulated host: processes, devices, shared memory, boot.

Every method may be called from any thread: one lock guards all state. What a process does at a signal is
decided by its owner (the vLLM stand-in), told through `on_signal` after the kernel's part has been done here.
"""

from __future__ import annotations

import itertools
import os
import signal as signals
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hosts.agent.system import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulator.devices import Gpu

TICKS_PER_SECOND = 100
FATAL_BY_DEFAULT = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT, signals.SIGKILL})


@dataclass
class SimulatedProcess:
    """One row of the process table; `exit_code` or `exit_signal` is set when it is gone."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    uid: int
    start_time: int
    title: str
    rss: int
    marker: str | None = None
    controller: str | None = None
    state: str = "S"
    on_signal: Callable[[int], None] | None = None
    on_exit: Callable[[], None] | None = None
    held_back: list[int] = field(default_factory=list)  # signals that wait for SIGCONT
    exit_code: int | None = None
    exit_signal: int | None = None

    @property
    def gone(self) -> bool:
        return self.exit_code is not None or self.exit_signal is not None

    @property
    def stopped(self) -> bool:
        return self.state == "T"

    def read(self) -> Process:
        return Process(
            pid=self.pid,
            ppid=self.ppid,
            pgid=self.pgid,
            sid=self.sid,
            uid=self.uid,
            state=self.state,
            start_time=self.start_time,
            title=self.title,
            rss=self.rss,
            marker=self.marker,
            controller=self.controller,
        )


class Machine:
    """Process table, device ledger and boot of one host."""

    def __init__(
        self,
        *,
        name: str,
        memory_total: int,
        gpus: list[Gpu],
        uid: int | None = None,
        machine_id: str | None = None,
    ) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.machine_id = machine_id or uuid.uuid5(uuid.NAMESPACE_DNS, f"machine.{name}.simulated").hex
        self.memory_total = memory_total
        self.gpus = gpus
        self.uid = os.getuid() if uid is None else uid
        self.shm: dict[str, set[int]] = {}
        self._table: dict[int, SimulatedProcess] = {}
        self._boot()

    def _boot(self) -> None:
        self.boot_id = str(uuid.uuid4())
        self.booted_at = time.time() - 3600.0
        self._pids = itertools.count(4000)
        self._table = {}
        self.spawn(title="/sbin/init", ppid=0, uid=0, rss=12 << 20, pid=1)
        daemon = self.spawn(title="/usr/sbin/sshd -D", ppid=1, uid=0, rss=9 << 20, pid=612)
        daemon.start_time = 900

    def reboot(self) -> None:
        """Everything ends without a signal handler's say; a new boot id."""
        with self.lock:
            old = [process for process in self._table.values() if process.pid not in (1, 612)]
            for process in old:
                self.finish(process, exit_signal=signals.SIGKILL)
            self.shm.clear()
            self._boot()

    def ticks(self) -> int:
        return int((time.time() - self.booted_at) * TICKS_PER_SECOND)

    def spawn(
        self,
        *,
        title: str,
        ppid: int,
        rss: int,
        uid: int | None = None,
        sid: int | None = None,
        marker: str | None = None,
        controller: str | None = None,
        pid: int | None = None,
    ) -> SimulatedProcess:
        """Add a process; without `sid` it leads a session of its own."""
        with self.lock:
            number = next(self._pids) if pid is None else pid
            session = number if sid is None else sid
            process = SimulatedProcess(
                pid=number,
                ppid=ppid,
                pgid=session,
                sid=session,
                uid=self.uid if uid is None else uid,
                start_time=self.ticks(),
                title=title,
                rss=rss,
                marker=marker,
                controller=controller,
            )
            self._table[number] = process
            return process

    def __iter__(self) -> Iterator[SimulatedProcess]:
        with self.lock:
            return iter(list(self._table.values()))

    def find(self, pid: int) -> SimulatedProcess | None:
        with self.lock:
            return self._table.get(pid)

    def find_by_title(self, text: str) -> list[SimulatedProcess]:
        """Live processes whose title contains `text`, oldest first."""
        return [process for process in self if text in process.title]

    def finish(
        self, process: SimulatedProcess, *, exit_code: int | None = None, exit_signal: int | None = None
    ) -> None:
        """Let the process be gone: memory released, children given to init. A second call changes nothing."""
        with self.lock:
            if process.gone:
                return
            process.exit_code, process.exit_signal = exit_code, exit_signal
            if exit_code is None and exit_signal is None:
                process.exit_code = 0
            process.state = "X"
            self._table.pop(process.pid, None)
            for child in self._table.values():
                if child.ppid == process.pid:
                    child.ppid = 1
            for gpu in self.gpus:
                gpu.release(process.pid)
            for users in self.shm.values():
                users.discard(process.pid)
        if process.on_exit is not None:
            process.on_exit()

    def signal(self, pid: int, start_time: int, number: int) -> bool:
        """Do what kill() and the kernel do; False where pid is not the process started at start_time."""
        with self.lock:
            process = self._table.get(pid)
            if process is None or process.start_time != start_time or process.uid != self.uid:
                return False
            if number == 0:
                return True
            if number == signals.SIGSTOP:
                process.state = "T"
                return True
            if number == signals.SIGCONT:
                process.state = "S"
                waiting, process.held_back = process.held_back, []
            elif process.stopped and number != signals.SIGKILL:
                process.held_back.append(number)
                return True
            else:
                waiting = [number]
        for each in waiting:
            self._deliver(process, each)
        return True

    def _deliver(self, process: SimulatedProcess, number: int) -> None:
        if number == signals.SIGKILL or (process.on_signal is None and number in FATAL_BY_DEFAULT):
            self.finish(process, exit_signal=number)
        elif process.on_signal is not None:
            process.on_signal(number)

    def share(self, name: str, *pids: int) -> None:
        """Let these processes map /dev/shm/NAME, which is made where it is missing."""
        with self.lock:
            self.shm.setdefault(name, set()).update(pids)

    def memory(self) -> tuple[int, int]:
        with self.lock:
            used = sum(process.rss for process in self._table.values()) + (1 << 30)
            return self.memory_total, max(0, self.memory_total - used)

    def gpus_of(self, visible: str | None) -> list[Gpu]:
        """Choose the cards that CUDA_VISIBLE_DEVICES (UUIDs or indices) leaves; all where it is unset."""
        if visible is None:
            return list(self.gpus)
        chosen = []
        for part in (text.strip() for text in visible.split(",")):
            match = [gpu for gpu in self.gpus if part in (gpu.uuid, str(gpu.index))]
            if not match:
                break  # CUDA ignores everything after the first unknown entry
            chosen.append(match[0])
        return chosen
