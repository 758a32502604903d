"""Terms of memory on a GPU, compared with what vLLM 0.25.1 logged and nvidia-smi showed on an H200."""

from decimal import Decimal

import pytest

from deployments.planning.memory_terms import batched_tokens, gpu_overhead, graph_count, weights_term, whole_range
from deployments.planning.model_memory import estimate_weight_bytes, kv_shape, kv_tokens, share_bytes
from tests.planning.factories import GIB, H200_TOTAL, QWEN3_0P6B, make_spec

MIB = 2**20
USABLE = H200_TOTAL - 616 * MIB  # what CUDA calls the total of this card
# Of every recorded start: utilisation, extra arguments, KV cache type, tokens that the log told.
STARTS = [
    ("0.1", {}, "auto", 116_080),
    ("0.3", {}, "auto", 377_040),
    ("0.3", {"--enforce-eager": True}, "auto", 377_856),
    ("0.3", {}, "fp8", 753_504),
    ("0.5", {}, "auto", 638_816),
    ("0.9", {}, "auto", 1_163_168),
]
# KV cache and memory used on the whole device once it served, in MiB.
USED = [(12.40, 14_977), (40.36, 43_667), (68.23, 72_165), (124.24, 129_497), (40.0, 45_371_883_520 / MIB)]


def overhead(**changes):
    return gpu_overhead(spec=make_spec(max_num_seqs=32, **changes), config=QWEN3_0P6B)


class TestPrediction:
    @pytest.mark.parametrize(("share", "extra", "cache", "measured"), STARTS)
    def test_of_the_cache_is_within_one_percent_of_every_recorded_start(self, share, extra, cache, measured):
        weights = estimate_weight_bytes(QWEN3_0P6B)
        left = share_bytes(total=USABLE, share=Decimal(share))
        left -= weights + overhead(extra_args=extra).activations.bytes
        shape = kv_shape(config=QWEN3_0P6B, dtype="auto", kv_cache_dtype=cache)
        assert kv_tokens(kv_bytes=left, shape=shape, block=16) == pytest.approx(measured, rel=0.01)

    @pytest.mark.parametrize(("kv_gib", "used_mib"), USED)
    def test_of_the_whole_holds_what_was_used_in_a_narrow_range(self, kv_gib, used_mib):
        weights = weights_term(size=estimate_weight_bytes(QWEN3_0P6B))
        low, high = whole_range(weights=weights, kv_cache=int(kv_gib * GIB), overhead=overhead())
        assert low <= used_mib * MIB <= high
        assert (high - low) / high < 0.06


class TestOverhead:
    def test_has_no_graphs_where_they_are_switched_off(self):
        assert overhead(extra_args={"--enforce-eager": True}).graphs.high == 0

    def test_counts_the_graphs_that_were_captured(self):
        assert graph_count(32) == 11 + 7

    def test_stops_at_the_largest_graph(self):
        assert graph_count(512) == graph_count(4096)

    def test_grows_with_the_batch_and_shrinks_with_tensor_parallel(self):
        small = overhead(extra_args={"--max-num-batched-tokens": 2048})
        assert small.activations.bytes < overhead().activations.bytes
        assert overhead(tensor_parallel=2).activations.bytes < overhead().activations.bytes

    @pytest.mark.parametrize("value", [0, -1, "many", "9" * 40])
    def test_takes_no_nonsense_for_a_batch(self, value):
        assert batched_tokens(make_spec(extra_args={"--max-num-batched-tokens": value})) == 8192
