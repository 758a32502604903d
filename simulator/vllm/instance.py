"""One running `vllm serve`: its processes, its reactions to signals and deaths, until the exit status.

Everything here runs in the fleet's event loop; machine callbacks come from other threads and are handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.vllm.arguments import ServeArguments
from simulator.vllm.log import LogWriter
from simulator.vllm.metrics import Metrics
from simulator.vllm.pace import Pace
from simulator.vllm.signals import Effect, Stage, choose_effect
from simulator.vllm.stats import StatsLine
from simulator.vllm.timings import Timings
from simulator.vllm.tree import Tree
from simulator.vllm.warmth import Caches

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from simulator.devices import Gpu
    from simulator.machine import Machine, SimulatedProcess
    from simulator.vllm.http_server import HttpServer


@dataclass
class Surroundings:
    """What the host gives an instance. `faults` are consumed, one per start: see simulator.faults."""

    machine: Machine
    address: str
    speed: float
    loop: asyncio.AbstractEventLoop
    pace: Pace
    caches: Caches = field(default_factory=Caches)
    faults: list[str] = field(default_factory=list)


class Instance:
    """State that start-up, HTTP surface and signal handling share."""

    def __init__(
        self,
        *,
        around: Surroundings,
        api: SimulatedProcess,
        words: list[str],
        env: dict[str, str],
        log_path: Path,
        version: str,
        python: str,
        template: str,
    ) -> None:
        self.around = around
        self.machine = around.machine
        self.timings = Timings(speed=around.speed, has_gpu=bool(around.machine.gpus))
        self.words = words
        self.env = env
        self.version = version
        self.python = python
        self.log = LogWriter(log_path, template=template)
        self.tree = Tree(
            machine=self.machine,
            timings=self.timings,
            api=api,
            python=python,
            prefix=env.get("VLLM_PROCESS_NAME_PREFIX", "VLLM"),
            keeps_marker=env.get("SPT_NOENV") == "1",
        )
        self.stage = Stage.IMPORTS
        self.arguments = ServeArguments()
        self.fault = around.faults.pop(0) if around.faults else None
        self.gpus: list[Gpu] = []
        self.socket: socket.socket | None = None
        self.http: HttpServer | None = None
        self.metrics = Metrics()
        self.stats = StatsLine(self)
        self.max_model_len = 0
        self.started = False
        self.warmth = around.caches.find_warmth(None)
        self.lived: dict[str, float] = {}  # seconds of each phase at speed 1, as a log would state them
        self.engine_dead = asyncio.Event()
        self.aborted = asyncio.Event()
        self.swallowed = 0
        self.wedged = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._startup: asyncio.Task[None] | None = None

    # -- tasks and time

    def begin(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Watch the API server and begin the start-up."""
        self.watch(self.tree.api)
        self.log.pids = {"APIServer": ("APIServer", self.tree.api.pid)}
        self._startup = self.run_task(run)

    def run_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = self.around.loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def live(self, phase: str, seconds: float | None = None) -> None:
        """Let a phase pass, or `seconds` of it, more slowly while others start on this host.

        It stands still while engine or API server are stopped, or wedged.
        """
        timings = self.timings
        began = self.around.loop.time()
        await self.around.pace.pass_time(
            timings.phase(phase, warmth=self.warmth) if seconds is None else seconds,
            growth=timings.growth(phase),
            recorded=timings.crowd,
        )
        while self._stands_still():
            await self.pause()
        passed = timings.measured(self.around.loop.time() - began)
        self.lived[phase] = self.lived.get(phase, 0.0) + passed

    async def write_over(self, pieces: list[str], phase: str, seconds: float | None = None) -> None:
        """Write pieces one after another over a phase, or over `seconds` of it."""
        whole = self.timings.phase(phase, warmth=self.warmth) if seconds is None else seconds
        for piece in pieces:
            await self.live(phase, whole / len(pieces))
            self.log.write(piece)
        if not pieces:
            await self.live(phase, whole)

    def _stands_still(self) -> bool:
        return self.wedged or any(each.stopped for each in (self.tree.engine, self.tree.api) if each)

    @staticmethod
    async def pause() -> None:
        """Wait a moment: how often something that stands still looks whether it may go on."""
        await asyncio.sleep(0.02)

    # -- signals

    def watch(self, process: SimulatedProcess) -> None:
        """Hear of signals to a process and of its end."""
        loop = self.around.loop

        def hand_over(call: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the fleet has stopped
                loop.call_soon_threadsafe(call)

        process.on_signal = lambda number: hand_over(lambda: self.on_signal(process, number))
        process.on_exit = lambda: hand_over(lambda: self.on_exit(process))

    def on_signal(self, process: SimulatedProcess, number: int) -> None:
        if process.gone or (self.fault == "deaf" and number == signal.SIGTERM):
            return
        role = self.tree.role_of(process)
        effect = choose_effect(role=role, stage=self.stage, number=number)
        if effect is Effect.DIE:
            self.machine.finish(process, exit_signal=number)
        elif effect is Effect.SWALLOW_FIRST:
            self._swallow()
        elif effect is Effect.SHUT_DOWN:
            self.stage = Stage.CLOSING
            self.run_task(self._shut_down)
        elif effect is Effect.LEAVE:
            self.run_task(self._leave_engine)

    def _swallow(self) -> None:
        """Swallow the first TERM of a start (wedged where EngineCore has no title yet); end at the second."""
        self.swallowed += 1
        engine = self.tree.engine
        if self.swallowed == 1:
            self.wedged = engine is None or "::" not in engine.title
        elif self.swallowed == 2:
            self.stage = Stage.CLOSING
            self.run_task(self._end_start)

    async def _end_start(self) -> None:
        await asyncio.sleep(self.timings.signal("starting_second_term"))
        self.end(exit_code=0)

    async def _shut_down(self) -> None:
        """Leave at SIGTERM: engine and workers first, the API server when the last open answer has gone."""
        self.log.write_section("shutdown_begin")
        for worker in self.tree.workers:
            self.log.write(
                f"(APIServer) WARNING [system_utils.py:225] [shutdown] force killing sub process "
                f"{worker.title} pid {worker.pid}\n"
            )
        self.aborted.set()
        if self.http is not None:
            self.http.stop_listening()
        await asyncio.sleep(self.timings.signal("serving_term_engine"))
        self._kill_engine()
        self.log.write_section("shutdown_end")
        if self.http is not None:
            await self.http.wait_until_answered()
        rest = self.timings.signal("serving_term_all") - self.timings.signal("serving_term_engine")
        await asyncio.sleep(rest)
        self.end(exit_code=0)

    async def _leave_engine(self) -> None:
        """SIGTERM to EngineCore: worker and engine end in good order (orphans, measured: 4.0 to 4.2 s)."""
        self.log.write_section("orphan_term")
        await asyncio.sleep(self.timings.signal("orphan_engine_term"))
        for worker in self.tree.workers:
            self.machine.finish(worker, exit_code=0)
        if self.tree.engine is not None:
            self.machine.finish(self.tree.engine, exit_code=0)

    # -- deaths

    def on_exit(self, process: SimulatedProcess) -> None:
        role = self.tree.role_of(process)
        if role == "api_server":
            self._on_api_gone()
        elif role == "engine_core":
            self._on_engine_gone()
        elif role == "worker" and self.stage is not Stage.CLOSING:
            self._on_worker_gone(process)
        if all(each.gone for each in (self.tree.api, *self.tree.workers, self.tree.engine) if each is not None):
            self.tree.finish_tracker()
            self.log.close()

    def _on_api_gone(self) -> None:
        """Free the port at once; children live on with parent 1 and keep their memory."""
        if self.http is not None:
            self.http.abort()
        elif self.socket is not None:
            self.socket.close()
        self.aborted.set()
        if self.tree.engine is None:
            self._stop_startup()

    def _on_engine_gone(self) -> None:
        self.engine_dead.set()
        self._stop_startup()
        if self.stage is Stage.CLOSING:
            return
        self.run_task(self._end_workers_after_engine)
        if not self.tree.api.gone and self.stage is Stage.SERVING:
            self.stage = Stage.CLOSING
            self.run_task(self._exit_after_engine)
        elif not self.tree.api.gone:
            self.stage = Stage.CLOSING
            self.run_task(self._exit_failed_start)

    def _on_worker_gone(self, worker: SimulatedProcess) -> None:
        engine = self.tree.engine
        if engine is None or engine.gone:
            return
        rank = self.tree.workers.index(worker)
        self.log.write_section("worker_died", rank=str(rank), exit_text="None")
        serving, self.stage = self.stage is Stage.SERVING, Stage.CLOSING
        self.engine_dead.set()
        self._stop_startup()
        self.run_task(lambda: self._exit_after_worker(serving))

    async def _end_workers_after_engine(self) -> None:
        await asyncio.sleep(self.timings.signal("engine_killed_worker_exit"))
        for worker in self.tree.workers:
            if not worker.gone:
                self.log.write(
                    f"(Worker pid={worker.pid}) INFO [multiproc_executor.py:843] Parent process exited, "
                    f"terminating worker queues\n"
                )
                self.machine.finish(worker, exit_code=0)

    async def _exit_after_engine(self) -> None:
        """Measured: /health 503 at once, the API server leaves by itself within seconds, with exit code 0."""
        self.log.write_section("engine_gone")  # read in the source of 0.32.0, not recorded
        await asyncio.sleep(self.timings.signal("engine_killed_api_exit"))
        self.log.write_section("api_exit")
        self.end_api(exit_code=0)

    async def _exit_after_worker(self, serving: bool) -> None:
        self._say_engine_dead(serving)
        await asyncio.sleep(self.timings.signal("worker_killed_all_exit"))
        self._kill_engine()
        if serving:
            self.log.write_section("api_exit")
        self.end_api(exit_code=0 if serving else 1)

    def _say_engine_dead(self, serving: bool) -> None:
        if serving:
            self.log.write_section("engine_dead")
        else:
            self.log.write_section("failed_start", error_type="RuntimeError", error="Executor failed.")

    async def _exit_failed_start(self) -> None:
        await asyncio.sleep(self.timings.signal("starting_second_term"))
        self._say_engine_dead(serving=False)
        self._kill_engine()
        self.end_api(exit_code=1)

    def _kill_engine(self) -> None:
        for process in (*self.tree.workers, self.tree.engine):
            if process is not None:
                self.machine.finish(process, exit_signal=signal.SIGKILL)

    def end_api(self, *, exit_code: int) -> None:
        self.machine.finish(self.tree.api, exit_code=exit_code)

    def end(self, *, exit_code: int) -> None:
        """Everything ends now, in good order."""
        self.stage = Stage.CLOSING
        self._kill_engine()
        self.end_api(exit_code=exit_code)
        self._stop_startup()

    def _stop_startup(self) -> None:
        if self._startup is not None and self._startup is not asyncio.current_task():
            self._startup.cancel()

    def cancel(self) -> None:
        """End with the fleet: no more tasks, no more sockets, nothing said."""
        for task in tuple(self._tasks):
            task.cancel()
        self._on_api_gone()
        self.log.close()

    # -- serving

    @property
    def answers(self) -> bool:
        """Whether the engine would work on a request now."""
        parts = [self.tree.engine, *self.tree.workers]
        return self.fault != "hang" and not any(part is None or part.stopped for part in parts)

    def mark_busy(self, busy: bool) -> None:
        with self.machine.lock:
            for gpu in self.gpus:
                for process in self.tree.ranks:
                    if busy and process.pid in gpu.held:
                        gpu.busy.add(process.pid)
                    elif not busy:
                        gpu.busy.discard(process.pid)

    @staticmethod
    def make_id(prefix: str) -> str:
        return f"{prefix}-{secrets.token_hex(8)}"
