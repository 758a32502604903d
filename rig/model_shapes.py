"""Shapes of public models, to be served with dummy weights: what their config.json says, without a byte of their weights."""

from __future__ import annotations

from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "attention_bias": False,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        **_QWEN3,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen3-8B": _qwen3(4096, 12_288, 36, 32, tied=False),
    "Qwen3-14B": _qwen3(5120, 17_408, 40, 40, tied=False),
    "Qwen3-32B": _qwen3(5120, 25_600, 64, 64, tied=False),
    "Llama-3.1-8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "Mistral-7B-v0.3": {
        **_LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_theta": 1_000_000.0,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32_768,
        "max_position_embeddings": 32_768,
        "sliding_window": None,
    },
}
