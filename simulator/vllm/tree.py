"""The processes of one instance, as `ps` shows them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.machine import Machine, SimulatedProcess
    from simulator.vllm.arguments import ServeArguments
    from simulator.vllm.timings import Timings

SPAWNED = (
    "-c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=32, pipe_handle=34) --multiprocessing-fork"
)
TRACKER = "-B -c from multiprocessing.resource_tracker import main;main(32)"


@dataclass
class Tree:
    """API server, resource tracker, EngineCore and workers; `ranks` are those that hold device memory."""

    machine: Machine
    timings: Timings
    api: SimulatedProcess
    python: str
    prefix: str = "VLLM"
    keeps_marker: bool = True  # SPT_NOENV=1: without it setproctitle wipes the environment of titled children
    tracker: SimulatedProcess | None = None
    engine: SimulatedProcess | None = None
    workers: list[SimulatedProcess] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> list[SimulatedProcess]:
        return self.workers or ([self.engine] if self.engine else [])

    @property
    def children(self) -> list[SimulatedProcess]:
        return [
            *self.workers,
            *([self.engine] if self.engine else []),
            *([self.tracker] if self.tracker else []),
        ]

    def role_of(self, process: SimulatedProcess) -> str:
        if process is self.api:
            return "api_server"
        if process is self.engine:
            return "engine_core"
        return "resource_tracker" if process is self.tracker else "worker"

    def _child(self, *, title: str, parent: SimulatedProcess, rss: int) -> SimulatedProcess:
        return self.machine.spawn(
            title=title,
            ppid=parent.pid,
            sid=self.api.sid,
            rss=rss,
            marker=self.api.marker,
            controller=self.api.controller,
        )

    def spawn_engine(self, watch: Callable[[SimulatedProcess], None]) -> SimulatedProcess:
        self.tracker = self._child(
            title=f"{self.python} {TRACKER}", parent=self.api, rss=self.timings.rss("resource_tracker")
        )
        self.engine = self._child(title=f"{self.python} {SPAWNED}", parent=self.api, rss=120 << 20)
        for process in (self.tracker, self.engine):
            watch(process)
        return self.engine

    def spawn_workers(self, count: int, watch: Callable[[SimulatedProcess], None]) -> None:
        """Workers of a world larger than one (always one on a CPU), with the segments they share."""
        if self.engine is None:
            raise RuntimeError("workers are children of EngineCore")
        for _ in range(count):
            worker = self._child(title=f"{self.python} {SPAWNED}", parent=self.engine, rss=120 << 20)
            self.workers.append(worker)
            watch(worker)
        pids = [self.engine.pid, *(worker.pid for worker in self.workers)]
        names = [f"psm_{secrets.token_hex(4)}" for _ in range(2)]
        if count > 1:
            names += [f"vllm_dist_{secrets.token_hex(16)}" for _ in range(2)]
        for name in names:
            self.machine.share(name, *pids)
        self.segments = names

    def title(self, process: SimulatedProcess, name: str, *, rss: int) -> None:
        process.title = f"{self.prefix}::{name}"
        process.rss = rss
        if not self.keeps_marker:
            process.marker = process.controller = None

    def title_workers(self, arguments: ServeArguments) -> None:
        for index, worker in enumerate(self.workers):
            self.title(worker, worker_name(arguments, index), rss=self.timings.rss("worker"))

    def finish_tracker(self) -> None:
        """Let the tracker clean the queues and end: nobody holds its pipe. vllm_dist_* stay, as measured."""
        if self.tracker is None or self.tracker.gone:
            return
        with self.machine.lock:
            for name in self.segments:
                if name.startswith("psm_"):
                    self.machine.shm.pop(name, None)
        self.machine.finish(self.tracker, exit_code=0)


def worker_name(arguments: ServeArguments, index: int) -> str:
    """`Worker`, `Worker_TP1`, `Worker_PP0_TP1`: each part only where that size is above one."""
    stage, rank = divmod(index, arguments.tensor_parallel)
    name = "Worker"
    if arguments.pipeline_parallel > 1:
        name += f"_PP{stage}"
    if arguments.tensor_parallel > 1:
        name += f"_TP{rank}"
    return name
