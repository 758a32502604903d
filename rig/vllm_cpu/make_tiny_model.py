"""Write a tiny random-weight chat model that vLLM can serve, with no model hub.

usage: make_tiny_model.py OUT_DIR [--arch qwen3|llama] [--layers 2] [--hidden 128]
                          [--heads 4] [--kv-heads 2] [--vocab 2048]
                          [--max-positions 2048] [--seed 0] [--no-weights]

Needs torch, transformers, tokenizers (all in the vllm venv). The tokenizer is a
real byte-level BPE trained on text made below, so any string can be encoded.
With --no-weights only config and tokenizer are written: serve that directory
with `vllm serve DIR --load-format dummy`.
"""

import argparse
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

PAD, BOS, EOS = "<|pad|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

NOUNS = """server host port engine worker request answer token model layer weight cache
queue batch prompt report error timeout metric gauge counter histogram process child
parent signal memory disk network socket client session key value user group role page
button table row column form field label""".split()
VERBS = """starts stops reads writes sends receives serves loads waits fails answers
measures counts checks verifies reports shows hides keeps drops opens closes""".split()
ADJECTIVES = """small large slow quick empty full red green blue old new first last open
closed busy idle ready broken healthy random tiny""".split()
PLACES = ["on the host", "in the cache", "near the queue", "after a timeout", "before dawn"]


def corpus(sentences: int, seed: int):
    """Yield made-up sentences; their repetition gives BPE something to merge."""
    rng = random.Random(seed)
    for number in range(sentences):
        yield (
            f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)} "
            f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(PLACES)}, "
            f"and {rng.choice(NOUNS)} number {number} is {rng.choice(ADJECTIVES)}."
        )


def build_tokenizer(vocab: int, max_length: int, seed: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(20_000, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def build_config(args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast):
    shared = dict(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 2,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim,
        max_position_embeddings=args.max_positions,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    if args.arch == "qwen3":
        return Qwen3Config(**shared), Qwen3ForCausalLM
    return LlamaConfig(**shared), LlamaForCausalLM


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--arch", choices=["qwen3", "llama"], default="qwen3")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=None, help="default: hidden / heads")
    parser.add_argument("--vocab", type=int, default=2048, help="upper bound, at least 259")
    parser.add_argument("--max-positions", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-weights", action="store_true")
    args = parser.parse_args()
    if args.heads % args.kv_heads:
        parser.error("--heads must be a multiple of --kv-heads")
    if args.head_dim is None:
        if args.hidden % args.heads:
            parser.error("--hidden must be a multiple of --heads (or give --head-dim)")
        args.head_dim = args.hidden // args.heads
    return args


def main() -> None:
    args = parse_args()
    args.out_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(args.vocab, args.max_positions, args.seed)
    config, model_class = build_config(args, tokenizer)
    config.architectures = [model_class.__name__]
    tokenizer.save_pretrained(args.out_dir)
    config.save_pretrained(args.out_dir)
    if not args.no_weights:
        torch.manual_seed(args.seed)
        model = model_class(config).to(torch.bfloat16)
        model.save_pretrained(args.out_dir)
    # after the weights: the model's save writes a bare generation_config.json itself
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
    ).save_pretrained(args.out_dir)
    for path in sorted(args.out_dir.iterdir()):
        print(f"{path.stat().st_size:>10}  {path.name}")
    print(f"vocab {len(tokenizer)}, head_dim {args.head_dim}")


if __name__ == "__main__":
    main()
