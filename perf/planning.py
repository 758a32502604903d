"""How long the planner takes: 4,800 instances, 24 on each of 200 hosts with eight GPUs of 24 GB.

usage: python -m perf.planning [--hosts 200] [--repeat 5]     writes perf/results/planning.json
"""

import argparse
import json
import time
import uuid
from pathlib import Path

from deployments.planning.build_start import build_start_plan
from deployments.planning.plan import HostRef, Plan, RevisionRef, Taken
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from hosts.facts.model import HostFacts
from hosts.facts.parse import parse_facts
from rig.model_shapes import SHAPES

GIB = 2**30
RESULT = Path(__file__).parent / "results" / "planning.json"


def facts_of(number: int) -> HostFacts:
    gpus = [
        {
            "uuid": f"GPU-{number}-{index}",
            "index": index,
            "name": "NVIDIA GeForce RTX 4090",
            "memory_total": 24564 * 2**20,
            "memory_used": 0,
            "mig": None,
        }
        for index in range(8)
    ]
    vllm = {"python": "/opt/vllm/bin/python", "executable": "/opt/vllm/bin/vllm", "version": "0.25.1", "kind": "venv"}
    model = {"path": "/models/m", "config": SHAPES["Qwen3-0.6B"], "config_error": None, "weight_bytes": 1_503_264_768}
    found = parse_facts(
        {
            "machine_id": f"m-{number}",
            "boot_id": "b",
            "hostname": f"gpu-{number}",
            "uid": 1000,
            "user": "llm",
            "cpu": {"count": 96},
            "memory": {"total": 512 * GIB, "available": 500 * GIB},
            "gpus": {"source": "nvml", "devices": gpus},
            "vllm": [vllm],
            "models": [model | {"weight_files": 1}],
            "session": {},
        }
    )
    if not isinstance(found, HostFacts):
        raise TypeError(found)
    return found


def plan_one(number: int, facts: HostFacts) -> Plan:
    spec = parse_spec(
        {
            "name": "qwen",
            "host": f"gpu-{number}",
            "model": "/models/m",
            "served_model_name": "qwen",
            "instances": 24,
            "max_model_len": 4096,
            "max_num_seqs": 32,
        }
    )
    if not isinstance(spec, DeploymentSpec):
        raise TypeError(spec)
    made = build_start_plan(
        spec=spec,
        revision=RevisionRef(id=number, number=1, digest="0" * 64, deployment_id=number, deployment_name="qwen"),
        host=HostRef(
            id=number,
            name=f"gpu-{number}",
            machine_id=f"m-{number}",
            host_key_fingerprint="-",
            model_roots=("/models",),
            vllm_roots=("/opt",),
        ),
        facts=facts,
        facts_age_s=1,
        taken=Taken(),
        ids=lambda: str(uuid.uuid4()),
        allow_code_loading=False,
    )
    if not isinstance(made, Plan):
        raise TypeError(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    facts = [facts_of(number) for number in range(options.hosts)]
    seconds = []
    for _ in range(options.repeat):
        began = time.perf_counter()
        instances = sum(len(plan_one(number, facts[number]).launches) for number in range(options.hosts))
        seconds.append(round(time.perf_counter() - began, 3))
    body = {"hosts": options.hosts, "instances": instances, "seconds": seconds}
    RESULT.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    print(json.dumps(body))


if __name__ == "__main__":
    main()
