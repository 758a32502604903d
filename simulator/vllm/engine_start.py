"""EngineCore and its workers during the start: processes, log lines of every rank, device memory.

Order as vLLM 0.25.1 and 0.32.0 have it: process group, memory snapshot and its check, weights, compilation,
profile, KV cache, CUDA graphs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.devices import GIB, OutOfDeviceMemoryError
from simulator.vllm import checks
from simulator.vllm.model import (
    BLOCK_SIZE,
    compute_kv_blocks,
    compute_kv_token_bytes,
    compute_requested,
    format_gib,
)
from simulator.vllm.tree import worker_name
from simulator.vllm.versions import is_at_least
from simulator.vllm.warmth import Warmth

if TYPE_CHECKING:
    from simulator.vllm.instance import Instance
    from simulator.vllm.model_files import Model


class EngineStart:
    """Runs once per instance. StartError carries what vLLM would say; the caller writes it."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.log = instance.log
        self.timings = instance.timings
        self.began = 0.0
        self.free_before: list[int] = []
        self.weights = 0  # bytes on each rank

    async def run(self, model: Model) -> None:
        await self._spawn()
        await self._join()
        await self._load(model)
        self.began = self.instance.around.loop.time()
        await self._compile()
        await self._make_cache(model)
        await self._capture()

    async def _spawn(self) -> None:
        instance = self.instance
        arguments = instance.arguments
        engine = instance.tree.spawn_engine(instance.watch)
        self.log.pids["EngineCore"] = ("EngineCore", engine.pid)
        self.log.values["engine_pid"] = str(engine.pid)
        before_title = self.timings.title_after
        await instance.live("engine", before_title)
        instance.tree.title(engine, "EngineCore", rss=self.timings.rss("engine_core"))
        self.log.silent = instance.fault == "silent"
        if instance.fault == "silent":
            await asyncio.Event().wait()
        await instance.live("engine", self.timings.phase("engine", warmth=instance.warmth) - before_title)
        self.log.write_section("engine")
        if arguments.world_size > 1 or not instance.machine.gpus:
            instance.tree.spawn_workers(arguments.world_size, instance.watch)
            await instance.live("workers", before_title)
            instance.tree.title_workers(arguments)

    def _rank_pieces(self, section: str, **extra: str) -> list[str]:
        """Give a section once per rank, each under its own process's name."""
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

    async def _join(self) -> None:
        """Process group, CUDA context, memory snapshot and the check of free memory."""
        instance = self.instance
        pieces = self._rank_pieces("distributed")
        if instance.arguments.world_size > 1:
            pieces += self._rank_pieces("nccl")
        pieces += self._rank_pieces("assigned")
        await self.instance.write_over(pieces, "distributed")
        if instance.fault == "rendezvous_taken" and not is_at_least(instance.version, "0.28"):
            raise checks.refuse_rendezvous(port=int(instance.log.values["rendezvous"]))
        utilization = instance.arguments.utilization
        self._allocate("context")
        if not instance.gpus:
            self._check_cpu()
        with instance.machine.lock:
            self.free_before = [gpu.free for gpu in instance.gpus]
        for index, (gpu, free) in enumerate(zip(instance.gpus, self.free_before, strict=True)):
            requested = compute_requested(total=gpu.usable, utilization=utilization)
            if failure := checks.check_free_memory(
                device=index, free=free, total=gpu.usable, requested=requested, utilization=utilization
            ):
                raise failure

    def _requested_cpu(self) -> int:
        instance = self.instance
        return compute_requested(total=instance.machine.memory_total, utilization=instance.arguments.utilization)

    def _explicit_cpu_cache(self) -> int | None:
        instance = self.instance
        if instance.arguments.kv_cache_memory is not None:
            return instance.arguments.kv_cache_memory
        space = instance.env.get("VLLM_CPU_KVCACHE_SPACE")
        return int(space) * GIB if space else None

    def _check_cpu(self) -> None:
        if self._explicit_cpu_cache() is not None:
            return
        total, available = self.instance.machine.memory()
        if failure := checks.check_cpu_memory(
            available=available,
            total=total,
            requested=self._requested_cpu(),
            utilization=self.instance.arguments.utilization,
        ):
            raise failure

    def _find_cpu_cache(self) -> int:
        """Bytes for the KV cache in RAM: as asked, or the requested share less what the worker has."""
        explicit = self._explicit_cpu_cache()
        total, available = self.instance.machine.memory()
        requested = self._requested_cpu()
        consumed = self.instance.tree.workers[0].rss
        wanted = explicit if explicit is not None else requested - consumed
        if failure := checks.check_cpu_cache(
            available=available,
            total=total,
            wanted=wanted,
            requested=None if explicit is not None else requested,
        ):
            raise failure
        self.log.values |= {"requested_gib": format_gib(requested), "consumed_gib": format_gib(consumed)}
        return wanted

    def _allocate(self, what: str, size: int | None = None) -> None:
        """Take the same number of bytes on each rank's device, or say CUDA's out-of-memory words."""
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
        seconds = self.timings.phase("load", warmth=instance.warmth)
        seconds += self.timings.read_weights(model.weight_bytes if model.shards else 0)
        if instance.fault == "slow_load":
            seconds *= 10
        share = model.weight_bytes // max(1, instance.arguments.world_size)
        available = instance.machine.memory()[1]
        values = {
            "shards": str(model.shards),
            "weights_gib": format_gib(share),
            "free_gib": format_gib(available),
        }
        await instance.write_over(self._rank_pieces("load", **values), "load", seconds * 0.2)
        if instance.fault == "out_of_memory":
            free = instance.gpus[0].free if instance.gpus else available
            total = instance.gpus[0].usable if instance.gpus else instance.machine.memory_total
            raise checks.refuse_out_of_memory(wanted=share, free=min(free, share // 3), total=total, device=0)
        if model.shards == 0 and instance.arguments.load_format != "dummy":
            raise checks.refuse_missing_weights(instance.arguments.model)
        before = instance.lived["load"]
        await instance.write_over(self._rank_pieces("shards", **values) if model.shards else [], "load", seconds * 0.8)
        if model.shards:
            self._write(self._rank_pieces("weights", **values, weights_s=f"{instance.lived['load'] - before:.2f}"))
        self._allocate("weights", share)
        self._write(self._rank_pieces("loaded", **values, load_s=f"{instance.lived['load']:.6f}"))
        if instance.fault == "crash":
            instance.machine.finish(instance.tree.ranks[0], exit_signal=11)
            await asyncio.Event().wait()
        self.weights = share

    def _write(self, pieces: list[str]) -> None:
        for piece in pieces:
            self.log.write(piece)

    async def _compile(self) -> None:
        instance = self.instance
        if instance.arguments.enforce_eager:
            return
        kept = "cached" if instance.warmth in (Warmth.SECOND, Warmth.WARM) else "new"
        await instance.live("dynamo")
        self._write(self._rank_pieces("dynamo", dynamo_s=f"{instance.lived['dynamo']:.2f}"))
        await instance.live("graph")
        self._write(self._rank_pieces(f"graph_{kept}", graph_s=f"{instance.lived['graph']:.2f}"))
        await instance.live("compile")
        if instance.fault == "disk_full":
            raise checks.refuse_full_disk()
        self._write(self._rank_pieces(f"compiled_{kept}", compile_s=f"{self.compiled_s:.2f}"))
        instance.around.caches.compiled.add(instance.arguments.compiled_for)

    @property
    def compiled_s(self) -> float:
        """Seconds of the compilation at speed 1, as it passed."""
        return sum(self.instance.lived.get(phase, 0.0) for phase in ("dynamo", "graph", "compile"))

    async def _make_cache(self, model: Model) -> None:
        """Profile, compute the KV cache of every rank, take it, and say how many tokens it holds."""
        instance, arguments = self.instance, self.instance.arguments
        self._allocate("activations")
        await instance.live("profile")
        token_bytes = compute_kv_token_bytes(
            shape=model.shape,
            kv_cache_dtype=arguments.kv_cache_dtype,
            tensor_parallel=arguments.tensor_parallel,
            pipeline_parallel=arguments.pipeline_parallel,
        )
        available = self._find_available()
        explicit = None if instance.gpus else self._explicit_cpu_cache()
        pinned = (arguments.kv_cache_memory or explicit) is not None
        _, memory = instance.machine.memory()
        self._write(
            self._rank_pieces(
                "pinned" if pinned else "profile",
                kv_gib=format_gib(available),
                free_gib=format_gib(min(self.free_before, default=memory)),
                total_gib=format_gib(instance.machine.memory_total),
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
        await instance.live("kv_cache")

    def _find_available(self) -> int:
        """Find the bytes for the KV cache, the least of all ranks.

        Growth of others since the snapshot is taken for our own, as in vLLM.
        """
        instance, arguments = self.instance, self.instance.arguments
        if not instance.gpus:
            return self._find_cpu_cache()
        if arguments.kv_cache_memory is not None:
            return arguments.kv_cache_memory
        found = []
        for gpu, before in zip(instance.gpus, self.free_before, strict=True):
            own = self.weights + self.timings.memory("activations")
            if failure := checks.check_profiling(free_before=before, free_after=gpu.free):
                raise failure
            others = max(0, (before - gpu.free) - own)
            found.append(compute_requested(total=gpu.usable, utilization=arguments.utilization) - own - others)
        return min(found)

    async def _capture(self) -> None:
        instance = self.instance
        if not instance.arguments.enforce_eager and instance.gpus:
            await instance.write_over(self._rank_pieces("graphs"), "graphs")
            self._allocate("graphs")
            self._write(
                self._rank_pieces(
                    "graphs_done",
                    graphs_s=f"{instance.lived['graphs']:.0f}",
                    graphs_gib=format_gib(self.timings.memory("graphs")),
                )
            )
        await instance.live("warmup")
        init = self.timings.measured(instance.around.loop.time() - self.began)
        self._write(self._rank_pieces("warmup", init_s=f"{init:.2f}", compile_s=f"{self.compiled_s:.2f}"))
        instance.around.caches.came_up[instance.arguments.compiled_for] += 1


def _is_bar(piece: str) -> bool:
    return piece.startswith("\r") or "%|" in piece or "% Completed" in piece
