from decimal import Decimal

import pytest

from deployments.planning.model_memory import (
    Unknown,
    context_limit,
    default_share,
    estimate_weight_bytes,
    kv_shape,
    kv_tokens,
    share_bytes,
)
from rig.model_shapes import SHAPES
from tests.planning.factories import GIB, H200_TOTAL, QWEN3_0P6B, TINY


def shape(config=QWEN3_0P6B, *, dtype="auto", kv_cache_dtype="auto", **changes):
    return kv_shape(config=config, dtype=dtype, kv_cache_dtype=kv_cache_dtype, **changes)


class TestKvShape:
    def test_of_the_recorded_gpu_model_is_112_kib_a_token(self):
        found = shape()
        assert found.bytes_per_token == 114_688 == 112 * 1024
        assert (found.layers, found.kv_heads, found.head_size, found.exact) == (28, 8, 128, True)

    def test_of_the_recorded_cpu_model_gives_its_logged_tokens(self):
        assert kv_tokens(kv_bytes=64 * 2**20, shape=shape(TINY), block=128) == 131_072
        assert kv_tokens(kv_bytes=GIB, shape=shape(TINY), block=128) == 2_097_152

    def test_of_a_pipeline_counts_the_layers_of_one_stage(self):
        """Recorded: cpu/pp2.log, two stages of one layer, one GiB each."""
        assert kv_tokens(kv_bytes=GIB, shape=shape(TINY, pipeline_parallel=2), block=128) == 4_194_304

    def test_gives_the_tokens_of_the_recorded_pinned_start(self):
        assert kv_tokens(kv_bytes=40 * GIB, shape=shape(), block=16) == 374_480

    @pytest.mark.parametrize(
        ("model", "tokens"),
        [
            ("Qwen3-0.6B", 18_720),
            ("Qwen3-1.7B", 18_720),
            ("Qwen3-4B", 14_560),
            ("Qwen3-8B", 14_560),
            ("Qwen3-14B", 13_104),
            ("Qwen3-32B", 8192),
            ("Mistral-7B-v0.3", 16_384),
            ("Llama-3.1-8B", 16_384),
        ],
    )
    def test_gives_the_tokens_that_were_logged_for_two_gib(self, model, tokens):
        assert kv_tokens(kv_bytes=2 * GIB, shape=shape(SHAPES[model]), block=16) == tokens

    def test_is_half_with_an_fp8_cache(self):
        assert shape(kv_cache_dtype="fp8").bytes_per_token == 57_344

    @pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
    def test_divides_kv_heads_and_never_below_one(self, tp, heads):
        assert shape(tensor_parallel=tp).kv_heads == heads

    @pytest.mark.parametrize(("pp", "layers"), [(1, 28), (3, 10), (4, 7)])
    def test_counts_the_layers_of_the_largest_stage(self, pp, layers):
        assert shape(pipeline_parallel=pp).layers == layers

    def test_works_without_head_dim_and_without_grouped_heads(self):
        config = {"num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8}
        assert shape(config).bytes_per_token == 2 * 2 * 8 * 64 * 2

    def test_reads_the_nested_configuration_of_multimodal_models(self):
        assert shape({"model_type": "x_vl", "text_config": QWEN3_0P6B}).bytes_per_token == 114_688

    def test_counts_the_compressed_cache_of_latent_attention(self):
        config = {
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "hidden_size": 7168,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        }
        assert shape(config, tensor_parallel=8).bytes_per_token == 61 * 576 * 2

    def test_doubles_with_float32(self):
        assert shape(dtype="float32").bytes_per_token == 2 * 114_688

    def test_is_an_upper_bound_with_sliding_windows(self):
        mixed = QWEN3_0P6B | {"layer_types": ["full_attention", "sliding_attention"]}
        assert not shape(mixed).exact
        assert not shape(QWEN3_0P6B | {"sliding_window": 4096}).exact
        assert shape(QWEN3_0P6B | {"sliding_window": 4096, "use_sliding_window": False}).exact

    @pytest.mark.parametrize(
        "config",
        [
            {},
            {"num_hidden_layers": 2},
            {"num_hidden_layers": 2, "num_attention_heads": 8},
            {"num_hidden_layers": "many", "num_attention_heads": -1},
            QWEN3_0P6B | {"layer_types": ["linear_attention", "full_attention"]},
            QWEN3_0P6B | {"model_type": "mamba2"},
            QWEN3_0P6B | {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}},
        ],
    )
    def test_says_why_where_it_does_not_know(self, config):
        found = shape(config)
        assert isinstance(found, Unknown)
        assert found.reason

    def test_does_not_know_a_new_cache_format(self):
        assert isinstance(shape(kv_cache_dtype="turboquant_3"), Unknown)


class TestShares:
    @pytest.mark.parametrize(
        ("count", "share"), [(1, "0.900"), (2, "0.450"), (3, "0.300"), (7, "0.128"), (24, "0.037")]
    )
    def test_are_nine_tenths_divided_and_never_rounded_up(self, count, share):
        assert default_share(instances_on_device=count) == Decimal(share)

    def test_are_what_vllm_requested_on_the_h200(self):
        assert share_bytes(total=H200_TOTAL, share=Decimal("0.3")) / GIB == pytest.approx(42.12, abs=0.01)


class TestEstimates:
    def test_of_weights_match_the_recorded_model(self):
        assert estimate_weight_bytes(QWEN3_0P6B) / GIB == pytest.approx(1.12, abs=0.02)

    def test_of_weights_are_not_made_for_experts(self):
        assert isinstance(estimate_weight_bytes(QWEN3_0P6B | {"num_experts": 128}), Unknown)


class TestContextLimit:
    def test_is_that_of_the_model(self):
        assert context_limit(QWEN3_0P6B) == 40_960

    @pytest.mark.parametrize(
        "config", [{}, {"max_position_embeddings": 10, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}]
    )
    def test_is_unknown_where_it_is_stretched_or_not_said(self, config):
        assert context_limit(config) is None

    def test_is_known_with_ordinary_rope_parameters(self):
        assert (
            context_limit(
                {
                    "max_position_embeddings": 10,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                }
            )
            == 10
        )
