from datetime import UTC, datetime

import pytest

from hosts.facts.model import FactsProblem, HostFacts
from hosts.facts.parse import parse_facts

GIB = 1024**3


def body(**changes):
    """Return a complete answer of the agent on a host with one GPU."""
    return {
        "machine_id": "m-1",
        "boot_id": "b-1",
        "hostname": "gpu01",
        "kernel": "6.1.0",
        "os": "Debian 12",
        "clock": "2026-12-01T06:00:00Z",
        "utc_offset_s": 3600,
        "uid": 1000,
        "user": "llm",
        "python": "3.11.2",
        "cpu": {"count": 16, "model": "EPYC"},
        "memory": {"total": 64 * GIB, "available": 60 * GIB},
        "disks": [{"path": "/", "total": 100, "free": 50, "filesystem": "ext4"}],
        "gpus": {
            "source": "nvml",
            "driver": "580.159.04",
            "cuda": "13.0",
            "devices": [
                {
                    "uuid": "GPU-1",
                    "index": 0,
                    "name": "NVIDIA H200",
                    "memory_total": 150754820096,
                    "memory_used": 644939776,
                    "memory_reserved": None,
                    "mig": "disabled",
                    "parent": None,
                    "pci_bus_id": "0:6",
                    "power_limit_w": 700.0,
                    "compute_capability": "9.0",
                }
            ],
        },
        "vllm": [
            {
                "python": "/opt/v/bin/python",
                "executable": "/opt/v/bin/vllm",
                "version": "0.25.1",
                "kind": "venv",
                "torch": "2.11",
            }
        ],
        "models": [
            {
                "path": "/models/a",
                "config": {"model_type": "qwen3"},
                "config_error": None,
                "weight_bytes": 5,
                "weight_files": 1,
                "dtype_bytes": None,
            }
        ],
        "session": {"kill_user_processes": False, "linger": None, "remove_ipc": True},
        "shm": {"total": 32 * GIB, "free": 31 * GIB},
    } | changes


class TestParseFacts:
    def test_reads_a_complete_answer(self):
        facts = parse_facts(body())
        assert isinstance(facts, HostFacts)
        assert (facts.machine_id, facts.boot_id, facts.hostname) == ("m-1", "b-1", "gpu01")
        assert facts.taken_at == datetime(2026, 12, 1, 6, tzinfo=UTC)
        assert (facts.cpu_count, facts.memory_available, facts.shm_free) == (16, 60 * GIB, 31 * GIB)
        assert facts.disks[0].filesystem == "ext4"
        assert (facts.gpu_source, facts.driver, facts.cuda) == ("nvml", "580.159.04", "13.0")
        assert (facts.devices[0].uuid, facts.devices[0].kind, facts.devices[0].mig_enabled) == (
            "GPU-1",
            "gpu",
            False,
        )
        assert facts.devices[0].memory_total == 150754820096
        assert facts.vllm[0].version == "0.25.1"
        assert (facts.models[0].config, facts.models[0].config_error) == ({"model_type": "qwen3"}, None)
        assert (facts.session.kill_user_processes, facts.session.linger, facts.session.remove_ipc) == (
            False,
            None,
            True,
        )
        assert facts.warnings == ()

    @pytest.mark.parametrize("key", ["machine_id", "boot_id", "hostname"])
    @pytest.mark.parametrize("value", [None, "", 7])
    def test_refuses_an_answer_without_identity(self, key, value):
        problem = parse_facts(body(**{key: value}))
        assert isinstance(problem, FactsProblem)
        assert (problem.code, problem.field) == ("FACTS_INCOMPLETE", key)

    @pytest.mark.parametrize("answer", [None, [], "x", 3])
    def test_refuses_what_is_no_object(self, answer):
        assert parse_facts(answer).code == "FACTS_UNREADABLE"

    def test_gives_a_host_without_gpus_one_device_of_its_memory(self):
        facts = parse_facts(body(gpus={"source": "none", "reason": "NVML: not found; nvidia-smi: not installed"}))
        (device,) = facts.devices
        assert (device.uuid, device.kind) == ("cpu", "cpu")
        assert (device.memory_total, device.memory_used) == (64 * GIB, 4 * GIB)
        assert facts.gpu_reason.startswith("NVML")

    def test_does_not_invent_the_memory_of_such_a_host(self):
        (device,) = parse_facts(body(gpus={"source": "none"}, memory={})).devices
        assert (device.memory_total, device.memory_used) == (None, None)

    def test_reads_gpus_given_as_text_of_nvidia_smi(self):
        gpus = {
            "source": "nvidia-smi",
            "csv": "GPU-9, 1024, 580.1\n",
            "fields": ["uuid", "memory.total", "driver_version"],
        }
        facts = parse_facts(body(gpus=gpus))
        assert (facts.devices[0].uuid, facts.devices[0].memory_total) == ("GPU-9", GIB)
        assert facts.driver == "580.1"

    def test_tells_slices_and_divided_gpus_apart(self):
        devices = [
            {"uuid": "GPU-1", "index": 0, "mig": "enabled"},
            {"uuid": "MIG-2", "index": 0, "mig": "instance", "parent": "GPU-1"},
        ]
        facts = parse_facts(body(gpus={"source": "nvml", "devices": devices}))
        assert [(device.kind, device.mig_enabled, device.parent) for device in facts.devices] == [
            ("gpu", True, None),
            ("mig", False, "GPU-1"),
        ]

    def test_names_a_gpu_without_uuid_and_goes_on(self):
        devices = [{"index": 0}, {"uuid": "GPU-2", "index": 1}]
        facts = parse_facts(body(gpus={"source": "nvml", "devices": devices}))
        assert [device.uuid for device in facts.devices] == ["GPU-2"]
        assert "GPU number 0" in facts.warnings[0]

    def test_gives_an_unreadable_config_its_reason_and_no_content(self):
        models = [{"path": "/m", "config": None, "config_error": "Expecting value: line 1", "weight_bytes": 0}]
        (model,) = parse_facts(body(models=models)).models
        assert (model.config, model.config_error, model.weight_bytes) == (None, "Expecting value: line 1", 0)

    @pytest.mark.parametrize("clock", ["yesterday", 7, None, "2026-13-01T00:00:00Z", "9" * 400])
    def test_reads_a_broken_clock_as_unknown(self, clock):
        assert parse_facts(body(clock=clock)).taken_at is None

    def test_bounds_and_cleans_what_a_host_says(self):
        facts = parse_facts(body(kernel="6.1\x00\ud800" + "x" * 9000, memory={"total": 10**30, "available": -1}))
        assert facts.kernel.startswith("6.1\ufffd\ufffd")
        assert len(facts.kernel) <= 4096
        assert (facts.memory_total, facts.memory_available) == (None, None)

    @pytest.mark.parametrize("key", ["cpu", "memory", "disks", "gpus", "vllm", "models", "session", "shm"])
    @pytest.mark.parametrize("value", [None, 3, "x", [1, None, "y"], {"devices": "x", "source": ["nvml"]}])
    def test_survives_parts_of_the_wrong_type(self, key, value):
        assert isinstance(parse_facts(body(**{key: value})), HostFacts)

    def test_ignores_fields_it_does_not_know(self):
        assert isinstance(parse_facts(body(future={"x": 1})), HostFacts)
