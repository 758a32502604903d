"""Terms of memory on a GPU, compared with what vLLM 0.25.1 logged and nvidia-smi showed on an H200."""

from decimal import Decimal

import pytest

from deployments.planning.memory_terms import batched_tokens, gpu_overhead, graph_count, ready_range, weights_term
from deployments.planning.model_memory import estimate_weight_bytes, kv_shape, kv_tokens, share_bytes
from rig.model_shapes import SHAPES
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
# Shape, sequences, batched tokens, eager, KV cache in bytes, what was held once it served: nvidia-smi of the whole device
# where six starts of one shape were alone on it, else EngineCore by NVML among others.
HELD = [
    ("Qwen3-0.6B", 32, 8192, False, 12.40 * GIB, 14_977 * MIB),
    ("Qwen3-0.6B", 32, 8192, True, 40.36 * GIB, 43_667 * MIB),
    ("Qwen3-0.6B", 32, 8192, False, 40.27 * GIB, 43_549 * MIB),
    ("Qwen3-0.6B", 32, 8192, False, 68.23 * GIB, 72_165 * MIB),
    ("Qwen3-0.6B", 32, 8192, False, 124.24 * GIB, 129_497 * MIB),
    ("Qwen3-0.6B", 32, 8192, False, 40 * GIB, 45_371_883_520),
    ("Qwen3-0.6B", 32, 8192, False, 42_633_789_440, 45_057_310_720),
    ("Qwen3-0.6B", 256, 8192, False, 2 * GIB, 5_586_812_928),
    ("Mistral-7B-v0.3", 32, 8192, False, 2 * GIB, 16.51 * GIB),
    ("Llama-3.1-8B", 256, 8192, False, 2 * GIB, 19.07 * GIB),
    ("Qwen3-32B", 32, 8192, False, 2 * GIB, 64.395 * GIB),
    ("Qwen3-1.7B", 64, 2048, False, 2 * GIB, 7_012_876_288),
    ("Qwen3-4B", 128, 8192, False, 2 * GIB, 12_041_846_784),
    ("Qwen3-8B", 16, 32768, False, 2 * GIB, 20_554_186_752),
    ("Qwen3-14B", 64, 8192, False, 2 * GIB, 33_170_653_184),
    ("Llama-3.1-8B", 32, 8192, True, 2 * GIB, 20_239_613_952),
    ("Mistral-7B-v0.3", 512, 16384, False, 2 * GIB, 19_012_780_032),
    ("Qwen3-0.6B", 1024, 8192, False, 2 * GIB, 7_755_268_096),
    ("Qwen3-8B", 64, 2048, True, 2 * GIB, 19_807_600_640),
    ("Llama-3.1-8B", 128, 16384, False, 2 * GIB, 19_954_401_280),
    ("Qwen3-14B", 32, 32768, False, 2 * GIB, 33_036_435_456),
    ("Mistral-7B-v0.3", 16, 16384, True, 2 * GIB, 19_669_188_608),
    ("Qwen3-8B", 32, 32768, False, 2 * GIB, 20_577_255_424),
    ("Qwen3-8B", 16, 16384, False, 2 * GIB, 19_704_840_192),
    ("Qwen3-4B", 16, 32768, False, 2 * GIB, 11_496_587_264),
    ("Llama-3.1-8B", 16, 32768, False, 2 * GIB, 19_904_069_632),
    ("Mistral-7B-v0.3", 512, 8192, False, 2 * GIB, 18_983_419_904),
]


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

    @pytest.mark.parametrize(("shape", "sequences", "tokens", "eager", "kv_cache", "held"), HELD)
    def test_of_the_whole_holds_what_was_held_in_a_narrow_range(self, shape, sequences, tokens, eager, kv_cache, held):
        config = SHAPES[shape]
        extra = {"--max-num-batched-tokens": tokens} | ({"--enforce-eager": True} if eager else {})
        spec = make_spec(max_num_seqs=sequences, extra_args=extra)
        weights = weights_term(size=estimate_weight_bytes(config))
        low, high = ready_range(
            weights=weights, kv_cache=int(kv_cache), overhead=gpu_overhead(spec=spec, config=config)
        )
        assert low <= held <= high
        assert (high - low) / high <= 0.06


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
