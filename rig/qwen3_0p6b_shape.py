"""Write config and tokenizer of the shape of Qwen3-0.6B, to be served with `--load-format dummy`.

usage: python3 qwen3_0p6b_shape.py DIR     (needs tokenizers, which vLLM brings)

Recipe from the project's founding documents, where an H200 was measured with it: 28 layers x 2 x 8 KV heads x
128 x 2 bytes = 114,688 bytes of KV cache a token. No weights and no text of the real model are in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 151_936
PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEXT = "the quick brown fox jumps over the lazy dog and the gpu fleet serves many tokens per second"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "use_cache": True,
}


def build_tokenizer() -> dict[str, Any]:
    """Give a byte-level BPE of 600 entries, filled up to the vocabulary of the shape."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 50, trainer)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary.update({f"w{number}": number for number in range(len(vocabulary), VOCABULARY)})
    return content


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        "tokenizer.json": build_tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "model_max_length": CONFIG["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 2, "bos_token_id": 0},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
