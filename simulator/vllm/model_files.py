"""Reads a model directory as vLLM's loader does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.vllm import checks
from simulator.vllm.model import ModelShape


@dataclass(frozen=True)
class Model:
    """A model directory as the loader finds it."""

    shape: ModelShape
    weight_bytes: int
    shards: int
    dtype: str


def read_model(path: str, *, load_format: str) -> Model:
    """StartError where vLLM could not read it."""
    directory = Path(path)
    if not (directory / "config.json").is_file():
        raise checks.refuse_missing_model(path) if path.startswith("/") else checks.refuse_offline_hub()
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text("utf-8"))
        shape = ModelShape.from_config(config)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise checks.refuse_bad_config(path) from None
    files = sorted(directory.glob("*.safetensors"))
    return Model(
        shape=shape,
        weight_bytes=sum(file.stat().st_size for file in files),
        shards=len(files) if load_format != "dummy" else 0,
        dtype=str(config.get("torch_dtype") or "bfloat16"),
    )
