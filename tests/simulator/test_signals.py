from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest

from simulator.fleet import wait_for
from simulator.vllm.signals import Effect, Stage, choose_effect

TERM, KILL, INT, HUP = signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP


@dataclass(frozen=True)
class Case:
    """A signal to one process of a serving instance, and what is seen afterwards."""

    target: str
    number: int
    code: int | None
    by_signal: int | None
    left: tuple[str, ...]


SERVING = {
    "SIGTERM to the API server ends all in good order": Case("api", TERM, 0, None, ()),
    "SIGINT to the API server likewise": Case("api", INT, 0, None, ()),
    "SIGKILL of the API server leaves orphans": Case("api", KILL, None, 9, ("VLLM::EngineCore", "python")),
    "SIGHUP of the API server leaves orphans": Case("api", HUP, None, 1, ("VLLM::EngineCore", "python")),
    "SIGKILL of EngineCore: the API server leaves with 0": Case("::EngineCore", KILL, 0, None, ()),
    "SIGTERM of EngineCore: the API server leaves with 0": Case("::EngineCore", TERM, 0, None, ()),
}


class TestServing:
    @pytest.mark.parametrize("name", SERVING)
    def test_reacts_as_measured(self, launcher, name):
        case = SERVING[name]
        started = launcher.start("gpu-a").wait_ready()
        started.send(case.target, case.number)
        status = started.wait_exit()
        assert (status.exit_code, status.exit_signal) == (case.code, case.by_signal)
        assert wait_for(lambda: tuple(started.titles) == case.left)

    def test_orphans_keep_their_memory_and_have_parent_one(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        used = started.host.machine.gpus[0].used
        started.send("api", KILL)
        started.wait_exit()
        engine = started.find("::EngineCore")
        assert engine.ppid == 1
        assert started.host.machine.gpus[0].used == used > 0
        with pytest.raises(ConnectionError):
            started.ask("GET", "/health")

    def test_orphaned_engine_goes_on_sigterm_and_the_tracker_cleans_up(self, launcher):
        started = launcher.start("gpu-a", "-tp", "2").wait_ready()
        assert len(started.host.machine.shm) == 4
        started.send("api", KILL)
        started.wait_exit()
        started.send("::EngineCore", TERM)
        assert wait_for(lambda: not started.processes)
        assert [name[:9] for name in started.host.machine.shm] == ["vllm_dist"] * 2

    def test_dead_worker_takes_all_with_it_and_is_named_in_the_log(self, launcher):
        started = launcher.start("gpu-a", "-tp", "2").wait_ready()
        started.send("Worker_TP0", KILL)
        assert wait_for(lambda: started.ask("GET", "/health")[0] == 503)
        assert started.wait_exit().exit_code == 0
        assert "Worker proc VllmWorker-0 died unexpectedly" in started.log
        assert wait_for(lambda: not started.processes)

    def test_dead_engine_answers_503_at_once(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        started.send("::EngineCore", KILL)
        assert wait_for(lambda: started.ask("GET", "/health")[0] == 503, seconds=1)
        started.wait_exit()

    def test_stopped_engine_is_healthy_and_answers_nothing_until_it_goes_on(self, launcher):
        started = launcher.start("gpu-a").wait_ready()
        started.send("::EngineCore", signal.SIGSTOP)
        assert started.ask("GET", "/health")[0] == 200
        assert started.ask("GET", "/v1/models")[0] == 200
        body = {"prompt": "hello", "max_tokens": 1}
        with pytest.raises(TimeoutError):
            started.ask("POST", "/v1/completions", body, timeout=0.3)
        assert 'num_requests_running{engine="0"' in started.ask("GET", "/metrics")[1]
        started.send("::EngineCore", TERM)  # ignored until it goes on
        assert started.find("::EngineCore").stopped
        started.find("::EngineCore").held_back.clear()
        started.send("::EngineCore", signal.SIGCONT)
        assert started.ask("POST", "/v1/completions", body)[0] == 200


class TestStarting:
    def test_dies_by_sigterm_while_it_imports(self, launcher):
        started = launcher.start("gpu-a", speed=30)
        started.send("api", TERM)
        assert started.wait_exit().exit_signal == TERM
        assert started.log == ""

    def test_swallows_the_first_sigterm_later_and_becomes_ready(self, launcher):
        started = launcher.start("gpu-a", speed=30).wait_line("Initializing a V1 LLM engine")
        started.send("api", TERM)
        started.wait_ready()
        assert started.ask("GET", "/health")[0] == 200

    def test_wedges_where_the_engine_has_no_title_yet(self, launcher):
        started = launcher.start("gpu-a", speed=30)
        assert wait_for(lambda: any("spawn_main" in each.title for each in started.processes))
        started.send("api", TERM)
        assert not wait_for(lambda: "Initializing a V1" in started.log, seconds=0.8)
        started.send("api", TERM)
        started.wait_exit()
        assert not started.processes

    def test_ends_with_the_second_sigterm(self, launcher):
        started = launcher.start("gpu-a", speed=30).wait_line("Initializing a V1 LLM engine")
        started.send("api", TERM)
        started.send("api", TERM)
        started.wait_exit()
        assert wait_for(lambda: not started.processes)
        assert "startup complete" not in started.log


class TestShutDown:
    def test_waits_for_the_client_of_an_open_stream(self, launcher):
        import http.client

        started = launcher.start("gpu-a").wait_ready()
        connection = http.client.HTTPConnection(started.host.address, started.port, timeout=5)
        body = '{"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": true}'
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        answer.read(10)
        started.send("api", TERM)
        assert wait_for(lambda: not any("Engine" in each.title for each in started.processes))
        assert not wait_for(lambda: started.status.state == "exited", seconds=0.3)
        started.send("api", TERM)  # ignored, as measured
        assert started.status.state == "running"
        answer.close()
        connection.close()
        assert started.wait_exit().exit_code == 0


class TestChooseEffect:
    @pytest.mark.parametrize(
        ("role", "stage", "number", "effect"),
        [
            ("api_server", Stage.IMPORTS, TERM, Effect.DIE),
            ("api_server", Stage.STARTING, TERM, Effect.SWALLOW_FIRST),
            ("api_server", Stage.SERVING, TERM, Effect.SHUT_DOWN),
            ("api_server", Stage.CLOSING, TERM, Effect.IGNORE),
            ("resource_tracker", Stage.SERVING, TERM, Effect.IGNORE),
            ("engine_core", Stage.SERVING, signal.SIGUSR1, Effect.IGNORE),
        ],
    )
    def test_finds_the_row(self, role, stage, number, effect):
        assert choose_effect(role=role, stage=stage, number=number) is effect
