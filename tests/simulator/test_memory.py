from __future__ import annotations

import signal

import pytest

from simulator.devices import GPU_MODELS, Gpu, OutOfDeviceMemoryError
from simulator.spec import LLAMA_3_1_8B, QWEN3_0_6B
from simulator.vllm.model import ModelShape, compute_kv_token_bytes

GIB = 1024**3


class TestArithmetic:
    @pytest.mark.parametrize(
        ("config", "dtype", "tensor_parallel", "wanted"),
        [
            (QWEN3_0_6B, "auto", 1, 114_688),  # 112 KiB, as measured on an H200
            (QWEN3_0_6B, "fp8", 1, 57_344),
            (LLAMA_3_1_8B, "auto", 1, 131_072),
            (LLAMA_3_1_8B, "auto", 8, 16_384),
            (LLAMA_3_1_8B, "auto", 16, 16_384),  # KV heads are not split below one
        ],
    )
    def test_counts_bytes_per_token(self, config, dtype, tensor_parallel, wanted):
        found = compute_kv_token_bytes(
            shape=ModelShape.from_config(config),
            kv_cache_dtype=dtype,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=1,
        )
        assert found == wanted

    @pytest.mark.parametrize(("utilization", "tokens"), [("0.1", 116_080), ("0.3", 377_856), ("0.9", 1_163_168)])
    def test_gives_the_cache_that_an_h200_gave(self, launcher, utilization, tokens):
        started = launcher.start("h200", "--gpu-memory-utilization", utilization).wait_ready()
        found = int(started.log.split("GPU KV cache size: ")[1].split(" ")[0].replace(",", ""))
        assert found == pytest.approx(tokens, rel=0.04)


class TestLedger:
    def test_refuses_what_does_not_fit(self):
        gpu = Gpu(uuid="GPU-1", index=0, model=GPU_MODELS["L4"])
        gpu.allocate(pid=1, size=20 * GIB)
        with pytest.raises(OutOfDeviceMemoryError):
            gpu.allocate(pid=2, size=5 * GIB)
        assert gpu.held == {1: 20 * GIB}
        gpu.release(1)
        assert gpu.used == 0

    def test_says_free_memory_when_a_second_instance_is_too_big(self, launcher):
        first = launcher.start("h200", "--gpu-memory-utilization", "0.6").wait_ready()
        used = first.host.machine.gpus[0].used
        second = launcher.start("h200", "--gpu-memory-utilization", "0.5")
        assert second.wait_exit().exit_code == 1
        assert "ValueError: Free memory on device cuda:0 (" in second.log
        assert "is less than desired GPU memory utilization (0.5, " in second.log
        assert first.host.machine.gpus[0].used == used

    def test_holds_two_that_fit_one_after_another(self, launcher):
        first = launcher.start("h200", "--gpu-memory-utilization", "0.45").wait_ready()
        launcher.start("h200", "--gpu-memory-utilization", "0.45").wait_ready()
        assert len(first.host.machine.gpus[0].held) == 2

    def test_robs_the_cache_of_instances_that_start_together(self, launcher):
        words = ("--gpu-memory-utilization", "0.3")
        together = [launcher.start("h200", *words, speed=40) for _ in range(2)]
        caches = [
            int(one.wait_ready().log.split("GPU KV cache size: ")[1].split(" ")[0].replace(",", "")) for one in together
        ]
        assert min(caches) < 0.99 * 377_856  # one took the other's growth for its own

    def test_pinned_bytes_ignore_what_others_do(self, launcher):
        words = ("--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(40 * GIB))
        together = [launcher.start("h200", *words, speed=40) for _ in range(2)]
        for one in together:
            assert "GPU KV cache size: 374,480 tokens" in one.wait_ready().log

    def test_gives_back_what_a_dead_process_held(self, launcher):
        started = launcher.start("h200").wait_ready()
        gpu = started.host.machine.gpus[0]
        started.send("api", signal.SIGKILL)
        started.wait_exit()
        assert gpu.used > 0
        started.send("::EngineCore", signal.SIGKILL)
        assert gpu.used == 0

    def test_reports_use_by_process(self, launcher):
        started = launcher.start("h200").wait_ready()
        use = started.host.system.device_use()[0]
        assert use.processes == ((started.find("::EngineCore").pid, use.used),)
        assert use.used + use.free == use.total - GPU_MODELS["H200"].memory_reserved

    def test_counts_what_others_hold(self, launcher):
        host = launcher.fleet["h200"]
        pid = host.occupy(0, 100 * GIB)
        try:
            started = launcher.start("h200", "--gpu-memory-utilization", "0.5")
            assert started.wait_exit().exit_code == 1
            assert "is less than desired GPU memory utilization" in started.log
            foreign = host.system.process(pid)
            assert foreign.uid != host.system.uid
            assert not host.system.signal(pid, foreign.start_time, signal.SIGKILL)
        finally:
            host.machine.finish(host.machine.find(pid), exit_code=0)


class TestCpu:
    def test_takes_the_share_of_ram_less_what_the_worker_has(self, launcher):
        started = launcher.start("cpu-box", "--gpu-memory-utilization", "0.5").wait_ready()
        assert "Auto set (" in started.log
        assert "with 32.00 GiB requested memory for the worker." in started.log

    def test_takes_what_the_environment_says(self, launcher):
        started = launcher.start("cpu-box", env={"VLLM_CPU_KVCACHE_SPACE": "2"}).wait_ready()
        assert "Explicitly set (2.00/64.00) GiB" in started.log

    def test_refuses_a_second_one_that_ram_does_not_hold(self, launcher):
        launcher.start("cpu-box", "--gpu-memory-utilization", "0.6").wait_ready()
        second = launcher.start("cpu-box", "--gpu-memory-utilization", "0.6")
        assert second.wait_exit().exit_code == 1
        assert "on startup is less than desired CPU memory utilization (0.6, 38.40 GiB)" in second.log
