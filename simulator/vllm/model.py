"""Arithmetic of vLLM's start: weights, KV cache, requested memory. Pure.

Formulas read from vllm/v1 (0.25 and 0.32) and checked against an H200: Qwen3-0.6B shape, utilisation 0.30 of
140.4 GiB gives 40.36 GiB of KV cache, 377,856 tokens (h200 recording of vLLM 0.25.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

BLOCK_SIZE = 16
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
GIB = 1024**3


@dataclass(frozen=True)
class ModelShape:
    """The part of config.json that the memory arithmetic needs."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    dtype_bytes: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelShape:
        heads = int(config["num_attention_heads"])
        return cls(
            architecture=str((config.get("architectures") or ["?"])[0]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            max_positions=int(config.get("max_position_embeddings") or 2048),
            dtype_bytes=DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2),
        )


def compute_kv_token_bytes(
    *, shape: ModelShape, kv_cache_dtype: str, tensor_parallel: int, pipeline_parallel: int
) -> int:
    """Bytes of KV cache per token on one rank: layers x 2 x KV heads x head size x element size."""
    element = 1 if kv_cache_dtype.startswith("fp8") else shape.dtype_bytes
    kv_heads = max(1, shape.kv_heads // tensor_parallel)
    return math.ceil(shape.layers / pipeline_parallel) * 2 * kv_heads * shape.head_dim * element


def compute_kv_blocks(*, available: int, token_bytes: int) -> int:
    return max(0, available) // (token_bytes * BLOCK_SIZE)


def compute_requested(*, total: int, utilization: float) -> int:
    return math.ceil(total * utilization)


def format_gib(size: float, digits: int = 2) -> str:
    return f"{size / GIB:.{digits}f}"
