from __future__ import annotations

import pytest

from simulator.fleet import wait_for


class TestProcessTree:
    def test_shows_one_engine_that_holds_the_memory_on_one_gpu(self, launcher):
        started = launcher.start("gpu-a", env={"CUDA_VISIBLE_DEVICES": "1"}).wait_ready()
        engine = started.find("::EngineCore")
        tracker = started.find("resource_tracker")
        assert engine.ppid == tracker.ppid == started.leader.pid
        assert len(started.processes) == 3
        assert [set(gpu.held) for gpu in started.host.machine.gpus] == [set(), {engine.pid}]

    def test_shows_workers_below_the_engine_with_tensor_parallel(self, launcher):
        started = launcher.start("gpu-a", "-tp", "2").wait_ready()
        engine = started.find("::EngineCore")
        workers = [process for process in started.processes if "::Worker" in process.title]
        assert [worker.title for worker in workers] == ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]
        assert {worker.ppid for worker in workers} == {engine.pid}
        assert [set(gpu.held) for gpu in started.host.machine.gpus] == [{worker.pid} for worker in workers]

    def test_shows_a_worker_of_its_own_on_a_cpu(self, launcher):
        started = launcher.start("cpu-box").wait_ready()
        assert started.find("VLLM::Worker").ppid == started.find("::EngineCore").pid

    def test_keeps_all_in_the_session_of_the_leader(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        assert {process.sid for process in started.processes} == {started.status.pid}

    def test_names_the_engine_only_some_time_after_the_start(self, launcher):
        started = launcher.start("gpu-a", speed=30)
        assert wait_for(lambda: any("spawn_main" in each.title for each in started.processes))
        started.wait_ready()
        assert not any("spawn_main" in each.title for each in started.processes)

    def test_takes_the_prefix_of_the_environment(self, launcher):
        started = launcher.start("gpu-a", env={"VLLM_PROCESS_NAME_PREFIX": "fleet-abc"}).wait_ready()
        assert started.find("fleet-abc::EngineCore")

    @pytest.mark.parametrize(("keep", "marked"), [("1", 3), ("", 2)])
    def test_loses_the_marker_of_titled_children_without_spt_noenv(self, launcher, keep, marked):
        started = launcher.start("gpu-a", env={"SPT_NOENV": keep}).wait_ready()
        assert sum(process.marker == started.launch_id for process in started.processes) == marked

    def test_binds_the_port_before_it_listens(self, launcher):
        started = launcher.start("gpu-a", speed=30).wait_line("Resolved architecture")  # said once it is bound
        reason = started.host.system.bind_error(started.host.address, started.port)
        assert reason is not None
        with pytest.raises(ConnectionRefusedError):
            started.ask("GET", "/health")
