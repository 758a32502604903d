"""The terms of one worker's memory on one GPU, and the range in which what it holds once ready is believed to lie.

    once ready     weights + KV cache + runtime + graphs
    at its peak    the same + activations: a full batch allocates them, vLLM gives them back after profiling

Calibrated on vLLM 0.25.1 on an H200 (perf/results): shapes of Qwen3, Llama and Mistral of 0.6 to 32 billion parameters with
16 to 1,024 sequences and batches of 2,048 to 32,768 tokens, captured and eager. While it profiles, vLLM counts 0.46 to
0.55 GiB of activations for Qwen3-0.6B. Everything is whole bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from deployments.planning import model_memory as memory
from deployments.planning.sizes import MIB

if TYPE_CHECKING:
    from deployments.planning.spec import DeploymentSpec

Source = Literal["files", "formula", "measured"]

# CUDA context, cuBLAS, attention workspaces and what the allocator keeps.
RUNTIME = 978 * MIB
# Giving activations back, the allocator keeps whole segments in which something small lives on. Of batches beyond this size
# that was seen to be anything between nothing and one array of the widest layer (32,768 tokens: 70 to 814 MiB).
BATCH_GIVEN_BACK = 8192
# Where nothing is captured, nothing is given back: of each batch the inner arrays of the widest layer stay, less what
# compiled code would have taken (measured: 86, 145, 894 and 1,900 MiB).
EAGER_PERCENT = 113
EAGER_LESS = 120 * MIB
# The context is there before vLLM takes its snapshot (0.11 on), so it lies outside what it calls requested.
CONTEXT = 520 * MIB
# The sampler keeps about this many arrays of logits in float32, of all sequences at once.
LOGITS_KEPT = 4
# What profiling counts beside the widest layer: FlashInfer, the allocator's rounding.
WORKSPACE = 150 * MIB
# One captured graph of one layer.
GRAPH_LAYER = 239 * 1024
RESIDENT_PERCENT = 6
MEASURED_PERCENT = 2
# The whole range is never wider than this: all that was measured lay inside it.
WIDEST_PERCENT = 6
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
    """What one worker holds beside weights and KV cache: runtime and graphs always, activations while a batch runs."""

    activations: Term
    runtime: Term
    graphs: Term

    @property
    def bytes(self) -> int:
        """The peak."""
        return self.activations.bytes + self.runtime.bytes + self.graphs.bytes

    @property
    def low(self) -> int:
        """The least that it holds once ready."""
        return self.runtime.low + self.graphs.low

    @property
    def high(self) -> int:
        """The most that it holds once ready."""
        return self.runtime.high + self.graphs.high


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
    logits = memory.logits_bytes(config=config, sequences=sequences, tensor_parallel=spec.tensor_parallel)
    widest = memory.widest_layer_bytes(config=config, tokens=batched_tokens(spec), tensor_parallel=spec.tensor_parallel)
    runtime = around(RUNTIME + LOGITS_KEPT * logits + kept_by_eager(spec=spec, config=config), percent=RESIDENT_PERCENT)
    most = runtime.bytes + most_kept(spec=spec, config=config)
    return Overhead(
        activations=around(WORKSPACE + widest + logits, percent=15),
        runtime=replace(runtime, high=max(runtime.high, most)),
        graphs=around(graph_bytes(spec=spec, config=config, sequences=sequences), percent=RESIDENT_PERCENT),
    )


def kept_by_eager(*, spec: DeploymentSpec, config: Mapping[str, Any]) -> int:
    """Bytes of a batch's activations that stay where nothing is captured."""
    if not is_eager(spec):
        return 0
    arrays = 4 * batched_tokens(spec) * memory.inner_size(config) * 2 // spec.tensor_parallel
    return max(0, arrays * EAGER_PERCENT // 100 - EAGER_LESS)


def most_kept(*, spec: DeploymentSpec, config: Mapping[str, Any]) -> int:
    """Bytes of a large batch's activations that may stay with the allocator after they were given back."""
    tokens = batched_tokens(spec)
    if is_eager(spec) or tokens <= BATCH_GIVEN_BACK:
        return 0
    return tokens * memory.inner_size(config) * 2 // spec.tensor_parallel


def corrected(overhead: Overhead, *, measured: int | None) -> Overhead:
    """Put what a launch of the same kind held once ready in the place of the formula; graphs are part of it."""
    if measured is None or measured <= overhead.graphs.bytes:
        return overhead
    graphs = exactly(overhead.graphs.bytes, source="measured")
    runtime = around(measured - graphs.bytes, percent=MEASURED_PERCENT, source="measured")
    return Overhead(activations=overhead.activations, runtime=runtime, graphs=graphs)


def is_eager(spec: DeploymentSpec) -> bool:
    return spec.extra_args.get("--enforce-eager") is True


def batched_tokens(spec: DeploymentSpec) -> int:
    """Tokens that a profiling run puts through the model at once."""
    given = str(spec.extra_args.get("--max-num-batched-tokens", ""))
    return int(given) if given.isdecimal() and 0 < int(given) < 10**9 else memory.BATCHED_TOKENS


def graph_bytes(*, spec: DeploymentSpec, config: Mapping[str, Any], sequences: int) -> int:
    if is_eager(spec):
        return 0
    layers = -(-(memory.layer_count(config) or 32) // spec.pipeline_parallel)
    # All graphs share one pool, in which the largest needs the room of its activations.
    largest = min(2 * sequences, LARGEST_GRAPH)
    pool = memory.widest_layer_bytes(config=config, tokens=largest, tensor_parallel=spec.tensor_parallel)
    return graph_count(sequences) * layers * GRAPH_LAYER + pool


def graph_count(sequences: int) -> int:
    """Graphs that vLLM captures: piecewise for batches up to twice the sequences, whole ones for decoding up to them.

    Batch sizes are 1, 2, 4, then 8 to 256 by 8, then by 16 up to 512 (0.11 to 0.33).
    """
    return len(_batches(min(2 * sequences, LARGEST_GRAPH))) + len(_batches(min(sequences, LARGEST_GRAPH)))


def _batches(largest: int) -> list[int]:
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST_GRAPH + 1, 16)]
    return [size for size in sizes if size <= largest]


def ready_range(*, weights: Term, kv_cache: int, overhead: Overhead) -> tuple[int, int]:
    """Return the least and the most that it is believed to hold once ready, in bytes."""
    low, high = weights.low + kv_cache + overhead.low, weights.high + kv_cache + overhead.high
    return low, min(high, low * 100 // (100 - WIDEST_PERCENT))
