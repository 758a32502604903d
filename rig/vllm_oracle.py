"""What vLLM's own ModelConfig and transformers say of model shapes. Runs under the CPU build's Python, prints JSON.

usage: PYTHON rig/vllm_oracle.py CASES.json     a list of {"name", "folder", "tensor_parallel", "pipeline_parallel"}

For each case: layers of the first stage, KV heads and head size of one worker, bytes of one token on it by vLLM, and
the bytes of all weights as transformers builds the model on the meta device. No weights are read or made.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm.config import ModelConfig, ParallelConfig


def main() -> None:
    weights: dict[str, int] = {}
    found = []
    for case in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        folder = case["folder"]
        if folder not in weights:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
            weights[folder] = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        config = ModelConfig(model=folder, dtype="bfloat16", skip_tokenizer_init=True)
        parallel = ParallelConfig(
            tensor_parallel_size=case["tensor_parallel"],
            pipeline_parallel_size=case["pipeline_parallel"],
            distributed_executor_backend="mp",
        )
        layers = config.get_num_layers(parallel)
        heads, size = config.get_num_kv_heads(parallel), config.get_head_size()
        width = torch.empty((), dtype=config.dtype).element_size()
        found.append(
            {
                **case,
                "layers": layers,
                "kv_heads": heads,
                "head_size": size,
                "bytes_per_token": layers * 2 * heads * size * width,
                "weight_bytes": weights[folder],
            }
        )
    sys.stdout.write("\nORACLE " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
