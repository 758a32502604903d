"""The terms of one worker's memory on one GPU, each with the range it is believed to lie in.

    total = weights + KV cache + activations + runtime + graphs

Calibrated on vLLM 0.25.1, an H200 and the shape of Qwen3-0.6B with 32 sequences: 1.11 to 1.16 GiB were held beside
weights and KV cache in six starts, of 0.10 to 0.90 of the GPU and with pinned bytes; 0.14 GiB of it were graphs, and vLLM
itself counted 0.46 to 0.55 GiB as activations. Everything is whole bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from deployments.planning import model_memory as memory
from deployments.planning.sizes import MIB

if TYPE_CHECKING:
    from deployments.planning.spec import DeploymentSpec

Source = Literal["files", "formula", "pinned", "share"]

# The CUDA context, cuBLAS and the runtime of one process. vLLM takes its snapshot after them (0.11 on), so they lie
# outside what it calls requested.
RUNTIME = 520 * MIB
# Workspaces that stay beside the activations of a full batch: FlashInfer, sampler, the allocator's rounding.
WORKSPACE = 150 * MIB
# One captured graph of one layer: 18 graphs of 28 layers took 0.14 GiB.
GRAPH_LAYER = 290 * 1024
# vLLM's own default for max_num_seqs on GPUs (0.25 to 0.33).
DEFAULT_SEQUENCES = 1024
LARGEST_GRAPH = 512


@dataclass(frozen=True, kw_only=True)
class Term:
    """`low` ≤ `bytes` ≤ `high`. `source` tells how it is known."""

    bytes: int
    low: int
    high: int
    source: Source


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What one worker holds beside weights and KV cache."""

    activations: Term
    runtime: Term
    graphs: Term

    @property
    def bytes(self) -> int:
        return self.activations.bytes + self.runtime.bytes + self.graphs.bytes

    @property
    def low(self) -> int:
        return self.activations.low + self.runtime.low + self.graphs.low

    @property
    def high(self) -> int:
        return self.activations.high + self.runtime.high + self.graphs.high


def exactly(size: int, *, source: Source) -> Term:
    return Term(bytes=size, low=size, high=size, source=source)


def around(size: int, *, percent: int, source: Source = "formula") -> Term:
    return Term(bytes=size, low=size * (100 - percent) // 100, high=size * (100 + percent) // 100, source=source)


def weights_term(*, size: int) -> Term:
    """Weights of one worker. Files hold headers and alignment, and a loader may pad the vocabulary: one percent."""
    return around(size, percent=1, source="files")


def cpu_overhead(*, eager: bool) -> Overhead:
    """API server, engine and worker of the CPU build: 1.7 GiB eager to 2.9 GiB with torch.compile were measured."""
    size = memory.CPU_OVERHEAD_EAGER if eager else memory.CPU_OVERHEAD
    none = exactly(0, source="formula")
    return Overhead(activations=none, runtime=around(size, percent=15), graphs=none)


def gpu_overhead(*, spec: DeploymentSpec, config: Mapping[str, Any]) -> Overhead:
    """Estimate activations, runtime and CUDA graphs of one worker of this deployment."""
    sequences = spec.max_num_seqs or DEFAULT_SEQUENCES
    activations = WORKSPACE + memory.activation_bytes(
        config=config,
        tokens=batched_tokens(spec),
        sequences=sequences,
        tensor_parallel=spec.tensor_parallel,
    )
    return Overhead(
        activations=around(activations, percent=15),
        runtime=around(RUNTIME, percent=10),
        graphs=around(graph_bytes(spec=spec, config=config, sequences=sequences), percent=30),
    )


def batched_tokens(spec: DeploymentSpec) -> int:
    """Tokens that a profiling run puts through the model at once."""
    given = str(spec.extra_args.get("--max-num-batched-tokens", ""))
    return int(given) if given.isdecimal() and 0 < int(given) < 10**9 else memory.BATCHED_TOKENS


def graph_bytes(*, spec: DeploymentSpec, config: Mapping[str, Any], sequences: int) -> int:
    if spec.extra_args.get("--enforce-eager") is True:
        return 0
    layers = memory.layer_count(config) or 32
    return graph_count(sequences) * -(-layers // spec.pipeline_parallel) * GRAPH_LAYER


def graph_count(sequences: int) -> int:
    """Graphs that vLLM captures: piecewise for batches up to twice the sequences, whole ones for decoding up to them.

    Batch sizes are 1, 2, 4, then 8 to 256 by 8, then by 16 up to 512 (0.11 to 0.33).
    """
    return len(_batches(min(2 * sequences, LARGEST_GRAPH))) + len(_batches(min(sequences, LARGEST_GRAPH)))


def _batches(largest: int) -> list[int]:
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST_GRAPH + 1, 16)]
    return [size for size in sizes if size <= largest]


def whole_range(*, weights: Term, kv_cache: int, overhead: Overhead) -> tuple[int, int]:
    """Return the lowest and the highest total that is believed possible, in bytes."""
    return weights.low + kv_cache + overhead.low, weights.high + kv_cache + overhead.high
