"""What a model needs on one device (weights, KV cache, overhead) and what a share leaves for the KV cache.

Formulas are those of vLLM's kv_cache_interface.py and config/model.py (0.9 to 0.33); figures marked
"measured" are from vLLM 0.25.1 on an H200 and the 0.32.0 CPU build. Everything is whole bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from deployments.planning.sizes import GIB

# What all instances of one device may take together, and what stays free for contexts, graphs and the driver.
DEVICE_SHARE = Decimal("0.90")
# A profiling run puts this many tokens through the model at once (vLLM's default for GPUs of 70 GiB and
# more).
BATCHED_TOKENS = 8192
# API server, engine and worker of the CPU build beside weights and KV cache: measured 1.7 GiB eager to 2.9
# GiB with torch.compile.
CPU_OVERHEAD = 3 * GIB
CPU_OVERHEAD_EAGER = 2 * GIB
# The CPU build has no useful default of its own for the KV cache.
CPU_KV_DEFAULT = 1 * GIB
BLOCK_TOKENS = {"gpu": 16, "mig": 16, "cpu": 128}

_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_KV_DTYPE_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8": 1,
}
# Layers whose state does not grow with the context, or grows in another way.
_PLAIN_LAYERS = frozenset({"full_attention", "attention"})
_WINDOW_LAYERS = frozenset({"sliding_attention", "chunked_attention"})


@dataclass(frozen=True, kw_only=True)
class KvShape:
    """`bytes_per_token` per device.

    `exact` is false where it is an upper bound (layers with a sliding window).
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int
    bytes_per_token: int
    exact: bool = True


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Nothing could be computed, and why: one sentence."""

    reason: str


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model; multimodal models nest it."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return text_config(nested) if key == "thinker_config" else nested
    return config


def layer_count(config: Mapping[str, Any]) -> int | None:
    return _first(text_config(config), _LAYERS)


def attention_heads(config: Mapping[str, Any]) -> int | None:
    return _first(text_config(config), _HEADS)


def context_limit(config: Mapping[str, Any]) -> int | None:
    """Return the context length of the model itself.

    None where unknown or stretched by RoPE scaling, which vLLM works out.
    """
    text = text_config(config)
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    stretched = isinstance(scaling, Mapping) and scaling.get("rope_type", scaling.get("type", "default")) not in (
        "default",
        None,
    )
    return None if stretched else _first(text, _CONTEXT)


def kv_shape(
    *,
    config: Mapping[str, Any],
    dtype: str,
    kv_cache_dtype: str,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> KvShape | Unknown:
    """Work out the KV cache of one token on one device, for full, grouped-query and latent attention."""
    text = text_config(config)
    layers, heads = _first(text, _LAYERS), _first(text, _HEADS)
    if layers is None or heads is None:
        return Unknown(reason="config.json does not name its layers and attention heads in a way that is known here")
    kinds = _layer_kinds(text)
    if kinds - _PLAIN_LAYERS - _WINDOW_LAYERS:
        return Unknown(reason="the model has layers of another kind than attention, whose state is not counted here")
    width = _kv_dtype_bytes(text=text, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    if width is None:
        return Unknown(reason=f"the KV cache format {kv_cache_dtype} is not known here")
    # The first stage of an uneven split has the fewest layers, so the largest stage is ceil(layers / stages).
    stage = -(-layers // pipeline_parallel)
    rank = _whole(text.get("kv_lora_rank"))
    if rank is not None:
        size = rank + (_whole(text.get("qk_rope_head_dim")) or 0)
        return KvShape(
            layers=stage, kv_heads=1, head_size=size, dtype_bytes=width, bytes_per_token=stage * size * width
        )
    head_size = _head_size(text, heads=heads)
    if head_size is None:
        return Unknown(reason="config.json does not name the size of an attention head")
    kv_heads = max(1, (_first(text, _KV_HEADS) or heads) // tensor_parallel)
    return KvShape(
        layers=stage,
        kv_heads=kv_heads,
        head_size=head_size,
        dtype_bytes=width,
        bytes_per_token=stage * 2 * kv_heads * head_size * width,
        exact=not kinds & _WINDOW_LAYERS and not _has_window(text),
    )


def widest_layer_bytes(*, config: Mapping[str, Any], tokens: int, tensor_parallel: int = 1) -> int:
    """Estimate the activations of the widest layer for `tokens` tokens, in 16 bits."""
    hidden, inner = hidden_size(config), inner_size(config)
    return tokens * (4 * inner // tensor_parallel + 8 * hidden) * 2


def hidden_size(config: Mapping[str, Any]) -> int:
    """Return the width of the hidden states; 4,096 where config.json does not tell."""
    return _first(text_config(config), _HIDDEN) or 4096


def inner_size(config: Mapping[str, Any]) -> int:
    """Return the width inside a feed-forward layer; four times the hidden one where config.json does not tell."""
    return _first(text_config(config), _INNER) or 4 * hidden_size(config)


def logits_bytes(*, config: Mapping[str, Any], sequences: int, tensor_parallel: int = 1) -> int:
    """Return the size of the logits of `sequences` sequences in float32."""
    return sequences * (_whole(text_config(config).get("vocab_size")) or 128_000) * 4 // tensor_parallel


def estimate_weight_bytes(config: Mapping[str, Any]) -> int | Unknown:
    """Work out the weights of a dense model in 16 bits, for a directory without weight files."""
    text = text_config(config)
    layers, heads, hidden = _first(text, _LAYERS), _first(text, _HEADS), _first(text, _HIDDEN)
    inner, vocabulary = _first(text, _INNER), _whole(text.get("vocab_size"))
    if None in (layers, heads, hidden, inner, vocabulary) or _first(text, _EXPERTS) is not None:
        return Unknown(reason="config.json does not describe a dense model whose weights can be counted")
    assert layers and heads and hidden and inner and vocabulary  # noqa: S101, PT018  # tells the type checker
    head_size = _head_size(text, heads=heads) or hidden // heads
    kv_heads = _first(text, _KV_HEADS) or heads
    attention = 2 * hidden * heads * head_size + 2 * hidden * kv_heads * head_size
    embeddings = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return 2 * (layers * (attention + 3 * hidden * inner) + embeddings)


def kv_tokens(*, kv_bytes: int, shape: KvShape, block: int) -> int:
    """Return the tokens that fit, in whole blocks as vLLM allots them."""
    return max(0, kv_bytes) // (shape.bytes_per_token * block) * block


def default_share(*, instances_on_device: int) -> Decimal:
    """Return 0.90 / N, cut (never rounded up) to three decimals."""
    return (DEVICE_SHARE / instances_on_device).quantize(Decimal("0.001"), rounding="ROUND_DOWN")


def share_bytes(*, total: int, share: Decimal) -> int:
    return int(total * share)


def _layer_kinds(text: Mapping[str, Any]) -> frozenset[str]:
    kinds = text.get("layer_types")
    found = {str(kind) for kind in kinds} if isinstance(kinds, list | tuple) else set()
    hybrid = (
        "mamba_d_state",
        "ssm_state_size",
        "mamba_expand",
        "linear_num_value_heads",
        "attn_layer_period",
        "hybrid_override_pattern",
    )
    if any(text.get(key) for key in hybrid) or "mamba" in str(text.get("model_type", "")):
        found.add("state_space")
    return frozenset(found)


def _has_window(text: Mapping[str, Any]) -> bool:
    # Qwen names a window and switches it off in the next line.
    return bool(text.get("sliding_window")) and text.get("use_sliding_window") is not False


def _kv_dtype_bytes(*, text: Mapping[str, Any], dtype: str, kv_cache_dtype: str) -> int | None:
    if kv_cache_dtype != "auto":
        return _KV_DTYPE_BYTES.get(kv_cache_dtype)
    if dtype != "auto":
        return _DTYPE_BYTES.get(dtype)
    quantization = text.get("quantization_config")
    if isinstance(quantization, Mapping) and quantization.get("kv_cache_scheme"):
        # The checkpoint carries scales for a cache of another format, which "auto" then uses.
        return None
    # vLLM serves float32 checkpoints in 16 bits when dtype is auto.
    return 2


def _head_size(text: Mapping[str, Any], *, heads: int) -> int | None:
    explicit = _whole(text.get("head_dim")) or _whole(text.get("hidden_size_per_head"))
    if explicit is not None:
        return explicit
    hidden = _first(text, _HIDDEN)
    return hidden // heads if hidden is not None else None


def _first(source: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = _whole(source.get(key))
        if value is not None:
            return value
    return None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        return None
    return int(value)
