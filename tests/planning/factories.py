"""Specs, hosts and facts for the planning tests; every argument that is not given has an ordinary value."""

from itertools import count

from deployments.planning.build_start import build_start_plan
from deployments.planning.plan import HostRef, RevisionRef, Taken
from deployments.planning.spec_parse import parse_spec
from hosts.facts.parse import parse_facts

GIB = 1024**3
H200_TOTAL = 150_754_820_096  # as NVML gave it on the recorded machine
# The shape of Qwen3-0.6B, and the two-layer model of the recorded CPU runs.
QWEN3_0P6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}


def spec_mapping(**changes):
    return {"name": "chat", "host": "gpu01", "model": "/models/qwen3", "served_model_name": "qwen3"} | changes


def make_spec(**changes):
    return parse_spec(spec_mapping(**changes))


def gpu(number=0, **changes):
    return {
        "uuid": f"GPU-{number}",
        "index": number,
        "name": "NVIDIA H200",
        "memory_total": H200_TOTAL,
        "memory_used": 0,
        "mig": "disabled",
    } | changes


def facts_body(*, gpus=None, **changes):
    gpus = (gpu(),) if gpus is None else gpus
    return {
        "machine_id": "m-1",
        "boot_id": "b-1",
        "hostname": "gpu01",
        "uid": 1000,
        "user": "llm",
        "cpu": {"count": 2, "model": "EPYC"},
        "memory": {"total": 24 * GIB, "available": 20 * GIB},
        "gpus": {"source": "nvml", "devices": list(gpus)} if gpus else {"source": "none", "reason": "no driver"},
        "vllm": [
            {
                "python": "/opt/vllm/bin/python",
                "executable": "/opt/vllm/bin/vllm",
                "version": "0.25.1",
                "kind": "venv",
            }
        ],
        "models": [
            {
                "path": "/models/qwen3",
                "config": QWEN3_0P6B,
                "config_error": None,
                "weight_bytes": 1_200_000_000,
                "weight_files": 1,
            },
            {
                "path": "/models/tiny",
                "config": TINY,
                "config_error": None,
                "weight_bytes": 1_600_000,
                "weight_files": 1,
            },
        ],
        "session": {},
    } | changes


def make_facts(**changes):
    return parse_facts(facts_body(**changes))


def make_host(**changes):
    return HostRef(
        **{
            "id": 7,
            "name": "gpu01",
            "machine_id": "m-1",
            "host_key_fingerprint": "SHA256:abc",
            "model_roots": ("/models",),
            "vllm_roots": ("/opt",),
            "state_root": None,
        }
        | changes
    )


def make_revision(**changes):
    return RevisionRef(
        **{"id": 3, "number": 2, "digest": "d" * 64, "deployment_id": 5, "deployment_name": "chat"} | changes
    )


def plan_start(*, spec=None, facts=None, host=None, taken=None, age=5, allow=False):
    numbers = count(1)
    return build_start_plan(
        spec=spec or make_spec(),
        revision=make_revision(),
        host=host or make_host(),
        facts=facts or make_facts(),
        facts_age_s=age,
        taken=taken or Taken(),
        ids=lambda: f"launch-{next(numbers)}",
        allow_code_loading=allow,
    )
