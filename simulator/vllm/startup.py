"""The start of an instance, phase by phase: log lines, processes, device memory, port.

Order and texts as vLLM 0.25.1 and 0.32.0 have them; durations from timings.json.
"""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.devices import GIB, OutOfDeviceMemoryError
from simulator.vllm import checks
from simulator.vllm.api import Api
from simulator.vllm.arguments import ArgumentError, parse_serve
from simulator.vllm.checks import StartError
from simulator.vllm.http_server import HttpServer
from simulator.vllm.model import (
    BLOCK_SIZE,
    ModelShape,
    compute_kv_blocks,
    compute_kv_token_bytes,
    compute_requested,
    format_gib,
)
from simulator.vllm.signals import Stage
from simulator.vllm.tree import worker_name
from simulator.vllm.versions import is_at_least

if TYPE_CHECKING:
    from simulator.vllm.instance import Instance

EVERYWHERE = frozenset({"", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1"})
CPU_DEFAULT_KV = 4 * GIB


@dataclass(frozen=True)
class Model:
    """A model directory as the loader finds it."""

    shape: ModelShape
    weight_bytes: int
    shards: int
    dtype: str


def read_model(path: str, *, load_format: str) -> Model:
    """StartError where vLLM could not read it."""
    directory = Path(path)
    if not (directory / "config.json").is_file():
        raise checks.refuse_missing_model(path) if path.startswith("/") else checks.refuse_offline_hub()
    config: dict[str, Any] = json.loads((directory / "config.json").read_text("utf-8"))
    files = sorted(directory.glob("*.safetensors"))
    return Model(
        shape=ModelShape.from_config(config),
        weight_bytes=sum(file.stat().st_size for file in files),
        shards=len(files) if load_format != "dummy" else 0,
        dtype=str(config.get("torch_dtype") or "bfloat16"),
    )


class Startup:
    """Runs once per instance; ends in a served port, or in the exit that the failure deserves."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.log = instance.log
        self.timings = instance.timings
        self.began = 0.0
        self.compile_seconds = 0.0
        self.free_before: list[int] = []
        self.weights = 0  # bytes on each rank

    async def run(self) -> None:
        instance = self.instance
        try:
            await self._start()
        except ArgumentError as error:
            self.log.write(str(error))
            instance.end(exit_code=2)
        except StartError as failure:
            self._write_failure(failure)
            instance.end(exit_code=1)
        except asyncio.CancelledError:
            raise

    async def _start(self) -> None:
        instance = self.instance
        await instance.sleep(self.timings.phase("imports"))
        instance.arguments = parse_serve(instance.words, version=instance.version)
        if "VLLM_API_KEY" in instance.env and not instance.arguments.api_keys:
            instance.arguments.api_keys = [instance.env["VLLM_API_KEY"]]
        self._set_values()
        self.log.write_section("arguments")
        instance.socket = self._bind()
        await instance.sleep(self.timings.phase("arguments"))
        model = await self._configure()
        instance.stage = Stage.STARTING
        await self._spawn(model)
        self.began = time.monotonic()
        await self._join(model)
        await self._load(model)
        await self._compile()
        await self._make_cache(model)
        await self._capture()
        await self._listen()

    # -- API server, before there is an engine

    def _set_values(self) -> None:
        instance, arguments = self.instance, self.instance.arguments
        given = {name: "***" if name == "api_key" else value for name, value in arguments.given.items()}
        binary = Path(instance.python).parent
        self.log.values |= {
            "version": instance.version,
            "model": arguments.model,
            "given": repr(given),
            "tp": str(arguments.tensor_parallel),
            "pp": str(arguments.pipeline_parallel),
            "world": str(arguments.world_size),
            "served": arguments.served_names[0],
            "kv_dtype": arguments.kv_cache_dtype,
            "load_format": arguments.load_format,
            "host": arguments.host or "0.0.0.0",  # noqa: S104 - what vLLM prints
            "port": str(arguments.port),
            "api_pid": str(instance.tree.api.pid),
            "site": str(binary.parent / "lib/python3.11/site-packages"),
            "bin": str(binary),
            "device": "GPU" if instance.machine.gpus else "CPU",
            "rendezvous": secrets.token_hex(16) if is_at_least(instance.version, "0.28") else "51173",
            "cache_key": secrets.token_hex(5),
            "aot_key": secrets.token_hex(32),
        }

    def _bind(self) -> socket.socket:
        """Bound, not listening, until the engine is ready: invisible in `ss`, taken for bind()."""
        instance, arguments = self.instance, self.instance.arguments
        host = arguments.host or ""
        address = instance.around.address if host in EVERYWHERE else host
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        try:
            if address != instance.around.address:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            sock.bind((address, arguments.port))
        except OSError as error:
            sock.close()
            raise StartError(
                f"OSError: [Errno {error.errno}] {error.strerror}",
                where="api",
                function="create_server_socket",
            ) from None
        return sock

    async def _configure(self) -> Model:
        instance, arguments = self.instance, self.instance.arguments
        model = read_model(arguments.model, load_format=arguments.load_format)
        self.log.values |= {"architecture": model.shape.architecture, "dtype": model.dtype}
        self.log.write_section("architecture")
        if failure := checks.check_length(model.shape, arguments):
            raise failure
        instance.max_model_len = arguments.max_model_len or model.shape.max_positions
        self.log.values |= {
            "max_len": str(instance.max_model_len),
            "max_len_commas": f"{instance.max_model_len:,}",
        }
        self.log.write_section("config")
        await instance.sleep(self.timings.phase("config"))
        instance.gpus = instance.machine.gpus_of(instance.env.get("CUDA_VISIBLE_DEVICES"))
        count = len(instance.gpus) if instance.machine.gpus else None
        if failure := checks.check_parallel(model.shape, arguments, gpus=count):
            raise failure
        if instance.machine.gpus and not instance.gpus:
            raise StartError("RuntimeError: No CUDA GPUs are available", where="api", function="_lazy_init")
        instance.gpus = instance.gpus[: arguments.world_size]
        return model

    # -- engine and workers

    async def _spawn(self, model: Model) -> None:
        instance = self.instance
        arguments = instance.arguments
        engine = instance.tree.spawn_engine(instance.watch)
        self.log.pids["EngineCore"] = ("EngineCore", engine.pid)
        self.log.values["engine_pid"] = str(engine.pid)
        before_title = self.timings.scaled("engine_title_after")
        await instance.sleep(before_title)
        instance.tree.title(engine, "EngineCore", rss=self.timings.rss("engine_core"))
        self.log.silent = instance.fault == "silent"
        if instance.fault == "silent":
            await asyncio.Event().wait()
        await instance.sleep(max(0.0, self.timings.phase("engine_imports") - before_title))
        self.log.write_section("engine")
        if arguments.world_size > 1 or not instance.machine.gpus:
            instance.tree.spawn_workers(arguments.world_size, instance.watch)
            await instance.sleep(before_title)
            instance.tree.title_workers(arguments)

    def _rank_pieces(self, section: str, **extra: str) -> list[str]:
        """A section once per rank, each under its own process's name."""
        pieces: list[str] = []
        for index, process in enumerate(self.instance.tree.ranks):
            stage, rank = divmod(index, self.instance.arguments.tensor_parallel)
            name = worker_name(self.instance.arguments, index) if self.instance.tree.workers else "EngineCore"
            label = f"Rank{index}"
            self.log.pids[label] = (name, process.pid)
            values = {"rank": str(index), "pp_rank": str(stage), "tp_rank": str(rank), **extra}
            pieces += [
                piece.replace("(Rank)", f"({label})", 1) if "(Rank)" in piece else piece
                for piece in self.log.pieces(section, **values)
                if index == 0 or ("(Rank)" in piece and not _is_bar(piece))
            ]
        return pieces

    async def _spread(self, pieces: list[str], seconds: float) -> None:
        """Write pieces one after another over a duration."""
        for piece in pieces:
            await self.instance.sleep(seconds / len(pieces))
            self.log.write(piece)
        if not pieces:
            await self.instance.sleep(seconds)

    async def _join(self, model: Model) -> None:
        """Process group, CUDA context, memory snapshot and the check of free memory."""
        instance = self.instance
        pieces = self._rank_pieces("distributed")
        if instance.arguments.world_size > 1:
            pieces += self._rank_pieces("nccl")
        pieces += self._rank_pieces("assigned")
        await self._spread(pieces, self.timings.phase("distributed"))
        utilization = instance.arguments.utilization
        self._allocate("context")
        with instance.machine.lock:
            self.free_before = [gpu.free for gpu in instance.gpus]
        for index, (gpu, free) in enumerate(zip(instance.gpus, self.free_before, strict=True)):
            requested = compute_requested(total=gpu.usable, utilization=utilization)
            if failure := checks.check_free_memory(
                device=index, free=free, total=gpu.usable, requested=requested, utilization=utilization
            ):
                raise failure

    def _allocate(self, what: str, size: int | None = None) -> None:
        """The same number of bytes on each rank's device, or CUDA's out-of-memory words."""
        instance = self.instance
        wanted = self.timings.memory(what) if size is None else size
        for index, (gpu, process) in enumerate(zip(instance.gpus, instance.tree.ranks, strict=False)):
            if process.gone:
                continue
            try:
                with instance.machine.lock:
                    gpu.allocate(pid=process.pid, size=wanted)
            except OutOfDeviceMemoryError as error:
                raise checks.refuse_out_of_memory(
                    wanted=error.wanted, free=error.free, total=gpu.usable, device=index
                ) from None
        if not instance.gpus:
            for process in instance.tree.workers:
                process.rss += wanted // 4 if what == "context" else wanted

    async def _load(self, model: Model) -> None:
        instance = self.instance
        seconds = self.timings.load(model.weight_bytes)
        if instance.fault == "slow_load":
            seconds *= 10
        share = model.weight_bytes // max(1, instance.arguments.world_size)
        available = instance.machine.memory()[1]
        values = {
            "shards": str(model.shards),
            "weights_gib": format_gib(share),
            "weights_s": f"{self.timings.measured(seconds) * 0.7:.2f}",
            "load_s": f"{self.timings.measured(seconds):.6f}",
            "free_gib": format_gib(available),
        }
        await self._spread(self._rank_pieces("load", **values), seconds * 0.2)
        if instance.fault == "out_of_memory":
            free = instance.gpus[0].free if instance.gpus else available
            total = instance.gpus[0].usable if instance.gpus else instance.machine.memory_total
            raise checks.refuse_out_of_memory(wanted=share, free=min(free, share // 3), total=total, device=0)
        if model.shards == 0 and instance.arguments.load_format != "dummy":
            raise checks.refuse_missing_weights(instance.arguments.model)
        if model.shards:
            await self._spread(self._rank_pieces("shards", **values), seconds * 0.7)
            self._write(self._rank_pieces("weights", **values))
        self._allocate("weights", share)
        await self._spread(self._rank_pieces("loaded", **values), seconds * 0.1)
        if instance.fault == "crash":
            instance.machine.finish(instance.tree.ranks[0], exit_signal=11)
            await asyncio.Event().wait()
        self.weights = share

    def _write(self, pieces: list[str]) -> None:
        for piece in pieces:
            self.log.write(piece)

    async def _compile(self) -> None:
        instance, arguments = self.instance, self.instance.arguments
        if arguments.enforce_eager:
            return
        key = f"{arguments.model} {arguments.tensor_parallel}"
        phase = "compile_warm" if key in instance.around.compiled else "compile_cold"
        self.compile_seconds = self.timings.phase(phase)
        total = self.timings.measured(self.compile_seconds)
        pieces = self._rank_pieces(
            phase, dynamo_s=f"{total * 0.26:.2f}", graph_s=f"{total * 0.5:.2f}", compile_s=f"{total:.2f}"
        )
        await self._spread(pieces, self.compile_seconds)
        instance.around.compiled.add(key)

    async def _make_cache(self, model: Model) -> None:
        """Profile, compute the KV cache of every rank, take it, and say how many tokens it holds."""
        instance, arguments = self.instance, self.instance.arguments
        self._allocate("activations")
        await instance.sleep(self.timings.phase("profile"))
        token_bytes = compute_kv_token_bytes(
            shape=model.shape,
            kv_cache_dtype=arguments.kv_cache_dtype,
            tensor_parallel=arguments.tensor_parallel,
            pipeline_parallel=arguments.pipeline_parallel,
        )
        available = self._find_available()
        pinned = arguments.kv_cache_memory is not None
        _, memory = instance.machine.memory()
        self._write(
            self._rank_pieces(
                "pinned" if pinned else "profile",
                kv_gib=format_gib(available),
                free_gib=format_gib(min(self.free_before, default=memory)),
                total_gib=format_gib(instance.machine.memory_total / 2),
            )
        )
        if failure := checks.check_kv_cache(
            available=available, token_bytes=token_bytes, max_model_len=instance.max_model_len
        ):
            raise failure
        blocks = compute_kv_blocks(available=available, token_bytes=token_bytes)
        self._allocate("kv_cache", blocks * BLOCK_SIZE * token_bytes)
        tokens = blocks * BLOCK_SIZE
        self.log.write_section(
            "kv_cache", kv_tokens=f"{tokens:,}", concurrency=f"{tokens / instance.max_model_len:.2f}"
        )
        instance.metrics.set_cache(blocks=blocks, arguments=arguments, max_model_len=instance.max_model_len)
        await instance.sleep(self.timings.phase("kv_cache"))

    def _find_available(self) -> int:
        """Bytes for the KV cache, the least of all ranks; others' growth since the snapshot is taken for ours, as in vLLM."""
        instance, arguments = self.instance, self.instance.arguments
        if arguments.kv_cache_memory is not None:
            return arguments.kv_cache_memory
        if not instance.gpus:
            return int(float(instance.env.get("VLLM_CPU_KVCACHE_SPACE", CPU_DEFAULT_KV / GIB)) * GIB)
        found = []
        for gpu, before in zip(instance.gpus, self.free_before, strict=True):
            own = self.weights + self.timings.memory("activations")
            if failure := checks.check_profiling(free_before=before, free_after=gpu.free):
                raise failure
            others = max(0, (before - gpu.free) - own)
            found.append(
                compute_requested(total=gpu.usable, utilization=arguments.utilization) - own - others
            )
        return min(found)

    async def _capture(self) -> None:
        instance = self.instance
        if not instance.arguments.enforce_eager and instance.gpus:
            seconds = self.timings.phase("graphs")
            await self._spread(self._rank_pieces("graphs"), seconds)
            self._allocate("graphs")
            self._write(
                self._rank_pieces(
                    "graphs_done",
                    graphs_s=f"{self.timings.measured(seconds):.0f}",
                    graphs_gib=format_gib(self.timings.memory("graphs")),
                )
            )
        await instance.sleep(self.timings.phase("warmup"))
        init = self.timings.measured(time.monotonic() - self.began)
        compiled = self.timings.measured(self.compile_seconds)
        self._write(self._rank_pieces("warmup", init_s=f"{init:.2f}", compile_s=f"{compiled:.2f}"))

    async def _listen(self) -> None:
        instance = self.instance
        await self._spread(self.log.pieces("http"), self.timings.phase("http"))
        assert instance.socket is not None
        if instance.tree.api.gone:
            return  # EngineCore became ready as an orphan: nobody serves it
        server = HttpServer(handle=Api(instance).handle, log=self._access)
        try:
            await server.listen(instance.socket)
        except OSError as error:
            raise StartError(
                f"OSError: [Errno {error.errno}] {error.strerror}", where="api", function="startup"
            ) from None
        instance.http = server
        self.log.write_section("ready")
        instance.stage = Stage.SERVING
        instance.started = True

    def _access(self, client: str, line: str, status: str) -> None:
        text = f'INFO:     {client} - "{line}" {status}\n'
        self.log.write(text if is_at_least(self.instance.version, "0.32") else f"(APIServer) {text}")

    # -- failure

    def _write_failure(self, failure: StartError) -> None:
        values = {
            "error": failure.text,
            "error_type": failure.kind,
            "failed_in": failure.function,
            "failed_file": "engine/arg_utils.py",
            "failed_line": "914",
            "failed_code": "raise error",
        }
        if failure.where == "api":
            self.log.write_section("api_failed", **values)
            return
        if self.instance.tree.workers and failure.where == "engine":
            source = "multiproc_executor.py:870"
            for line in (
                "WorkerProc failed to start.",
                "Traceback (most recent call last):",
                f"{failure.kind}: {failure.text}",
            ):
                self._write([f"(Rank0) ERROR [{source}] {line}\n"])
            values |= {
                "error_type": "Exception",
                "error": "WorkerProc initialization failed due to an exception in a background process. "
                "See stack trace for root cause.",
            }
        self.log.write_section("engine_failed", **values)
        self.log.write_section("failed_start", **values)


def _is_bar(piece: str) -> bool:
    return piece.startswith("\r") or "%|" in piece or "% Completed" in piece
