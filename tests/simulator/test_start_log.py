from __future__ import annotations

import re

import pytest

from simulator.fleet import wait_for

GPU_25 = (
    "version 0.25.1",
    "non-default args: {'model_tag':",
    "Resolved architecture: Qwen3ForCausalLM",
    "Using max model len 4096",
    "Initializing a V1 LLM engine (v0.25.1)",
    "rank 0 in world size 1 is assigned",
    "Loading safetensors checkpoint shards: 100% Completed | 1/1",
    "Model loading took 1.40 GiB and",
    "torch.compile took",
    "Available KV cache memory:",
    "GPU KV cache size:",
    "Maximum concurrency for 4,096 tokens per request:",
    "Graph capturing finished in",
    "init engine (profile, create kv cache, warmup model) took",
    "Starting vLLM server on http://",
    "Application startup complete.",
)
GPU_32 = (
    "version 0.32.0",
    "Initializing a V1 LLM engine (v0.32.0)",
    "Model loading took 1.40 GiB memory and",
    "GPU KV cache size: 63,408 tokens, Maximum concurrency for 4,096 tokens per request: 15.48x",
    "init engine (profile, create kv cache, warmup model) took",
    "Application startup complete.",
)
CPU_32 = (
    "Starting to load model",
    "Loading weights took",
    "CPU KV cache size:",
    "init engine (profile, create kv cache, warmup model) took",
    "Application startup complete.",
)
RECORD = re.compile(r"^\((?P<name>[A-Za-z]\w*) pid=\d+\) (INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[")


def find_in_order(text: str, parts: tuple[str, ...]) -> list[str]:
    """The parts that are not found behind one another."""
    position, missing = 0, []
    for part in parts:
        found = text.find(part, position)
        if found < 0:
            missing.append(part)
        else:
            position = found
    return missing


class TestSuccessfulStart:
    @pytest.mark.parametrize(
        ("host", "installation", "parts"),
        [("gpu-a", 0, GPU_25), ("gpu-a", 1, GPU_32), ("cpu-box", 0, CPU_32)],
        ids=["0.25.1 on a GPU", "0.32.0 on a GPU", "0.32.0 on a CPU"],
    )
    def test_logs_its_phases_in_order(self, launcher, host, installation, parts):
        found = launcher.fleet[host]
        vllm = str(found.layout.executable(found.spec.installations[installation]))
        words = ("--gpu-memory-utilization", "0.4", "--max-model-len", "4096")
        started = launcher.start(host, *words, vllm=vllm).wait_ready()
        assert find_in_order(started.log, parts) == []
        assert "$" not in started.log
        assert "(Rank" not in started.log

    def test_prefixes_every_line_through_0_31(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        assert all(line.startswith("(") for line in started.log.split("\n") if line)
        assert f"(APIServer pid={started.status.pid}) INFO:     Application startup complete." in started.log

    def test_prefixes_records_only_since_0_32(self, launcher):
        started = launcher.start("cpu-box").wait_ready()
        assert "\nINFO:     Application startup complete.\n" in started.log
        assert "\nLoading safetensors" in started.log

    def test_draws_bars_with_carriage_returns(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        bar = next(line for line in started.log_path.read_bytes().split(b"\n") if b"CUDA graphs (FULL)" in line)
        assert bar.count(b"\r") == 7
        assert bar.startswith(f"(EngineCore pid={started.find('::EngineCore').pid})".encode())

    def test_speaks_for_every_rank_with_tensor_parallel(self, launcher):
        started = launcher.start("gpu-a", "-tp", "2").wait_ready()
        names = {match["name"] for line in started.log.splitlines() if (match := RECORD.match(line))}
        assert names == {"APIServer", "EngineCore", "Worker_TP0", "Worker_TP1"}
        assert started.log.count("Available KV cache memory:") == 2
        assert started.log.count("GPU KV cache size:") == 1

    def test_skips_compilation_and_graphs_when_eager(self, launcher):
        started = launcher.start("gpu-a", "--enforce-eager").wait_ready()
        assert "torch.compile took" not in started.log
        assert "Capturing CUDA graphs" not in started.log


FAILURES = {
    "unknown flag": (("--no-such-flag",), {}, 2, "vllm: error: unrecognized arguments: --no-such-flag"),
    "removed flag": (("--disable-log-requests",), {}, 2, "unrecognized arguments: --disable-log-requests"),
    "bad value": (
        ("--max-model-len", "abc"),
        {},
        2,
        "argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'",
    ),
    "missing model": ((), {"model": "/models/nope"}, 1, "HFValidationError: Repo id must be in the form"),
    "length": (
        ("--max-model-len", "99999"),
        {},
        1,
        "User-specified max_model_len (99999) is greater than the derived max_model_len",
    ),
    "heads": (
        ("-tp", "3"),
        {},
        1,
        "Total number of attention heads (16) must be divisible by tensor parallel size (3).",
    ),
    "world": (("-tp", "4"), {}, 1, "World size (4) is larger than the number of available GPUs (2)"),
    "no cache": (
        ("--gpu-memory-utilization", "0.05"),
        {},
        1,
        "No available memory for the cache blocks.",
    ),
    "short cache": (
        ("--gpu-memory-utilization", "0.12", "--max-model-len", "40960"),
        {},
        1,
        "To serve at least one request with the model's max seq len (40960)",
    ),
    "pinned too big": (
        ("--kv-cache-memory-bytes", "40G", "--gpu-memory-utilization", "0.05"),
        {},
        1,
        "torch.OutOfMemoryError: CUDA out of memory.",
    ),
}


class TestFailedStart:
    @pytest.mark.parametrize("name", FAILURES)
    def test_says_what_vllm_says_and_leaves_nothing(self, launcher, name):
        words, options, code, text = FAILURES[name]
        started = launcher.start("gpu-a", *words, **options)
        assert started.wait_exit().exit_code == code
        assert text in started.log
        assert wait_for(lambda: not started.processes)
        assert all(gpu.used == 0 for gpu in started.host.machine.gpus)

    def test_names_the_root_cause_before_the_general_line(self, launcher):
        started = launcher.start("gpu-a", "--gpu-memory-utilization", "0.05")
        started.wait_exit()
        assert (
            find_in_order(
                started.log,
                ("EngineCore failed to start.", "No available memory", "Engine core initialization failed."),
            )
            == []
        )

    def test_refuses_a_port_that_is_taken(self, launcher):
        first = launcher.start("gpu-a", "--gpu-memory-utilization", "0.3").wait_ready()
        second = launcher.start("gpu-a", port=first.port)
        assert second.wait_exit().exit_code == 1
        assert "OSError: [Errno 98] Address already in use" in second.log
        assert first.ask("GET", "/health")[0] == 200

    def test_misses_weights(self, launcher):
        started = launcher.start("h200", model="no-weights")
        assert started.wait_exit().exit_code == 1
        assert "Cannot find any model weights" in started.log

    @pytest.mark.parametrize(
        ("fault", "code", "text"),
        [
            ("out_of_memory", 1, "torch.OutOfMemoryError: CUDA out of memory."),
            ("crash", 1, "Engine core initialization failed. See root cause above."),
            ("port_taken", 1, "OSError: [Errno 98] Address already in use"),
            ("rendezvous_taken", 1, "torch.distributed.DistNetworkError: The server socket has failed to listen"),
            ("disk_full", 1, "OSError: [Errno 28] No space left on device"),
        ],
    )
    def test_fails_as_it_was_told_to(self, launcher, fault, code, text):
        launcher.fleet["gpu-a"].fail_next(fault)
        started = launcher.start("gpu-a")
        assert started.wait_exit().exit_code == code
        assert text in started.log

    def test_is_silent_when_told_to(self, launcher):
        launcher.fleet["gpu-a"].fail_next("silent")
        started = launcher.start("gpu-a").wait_line("Using max model len")
        size = len(started.log)
        assert not wait_for(lambda: len(started.log) != size, seconds=1.0)
        assert started.status.state == "running"

    def test_leaves_an_orphan_that_keeps_its_memory_when_told_to(self, launcher):
        host = launcher.fleet["gpu-a"]
        host.fail_next("killed_parent")
        assert launcher.start("gpu-a").wait_exit().exit_signal == 9
        assert host.machine.find_by_title("EngineCore")
        assert host.machine.gpus[0].used > 2**30

    def test_serves_another_name_when_told_to(self, launcher):
        launcher.fleet["gpu-a"].fail_next("wrong_name")
        started = launcher.start("gpu-a").wait_line("Application startup complete.")
        assert "another-model" in started.log

    def test_knows_its_faults(self, launcher):
        with pytest.raises(ValueError, match="Unknown fault"):
            launcher.fleet["gpu-a"].fail_next("everything")


class TestUnreadableConfig:
    def test_says_that_it_is_no_json(self, launcher, tmp_path):
        directory = tmp_path / "broken"
        directory.mkdir()
        (directory / "config.json").write_text("{")
        started = launcher.start("gpu-a", model=str(directory))
        assert started.wait_exit().exit_code == 1
        assert "is not a valid JSON file" in started.log
