"""The simulator's times are what the script reads from the recorded logs, and nothing else."""

import pytest

from rig.phase_logs import PHASES, measure_phases, read_recorded
from rig.phase_times import ALONE, ROOT, SAMPLES, TOGETHER, WRITTEN, make_times, measure_growth, write_text

START = (
    "(APIServer pid=1) INFO 12-01 23:59:50 [api_utils.py:273] non-default args: {}",
    "(APIServer pid=1) INFO 12-01 23:59:52 [model.py:619] Resolved architecture: Qwen3ForCausalLM",
    "(APIServer pid=1) INFO 12-01 23:59:52 [model.py:1776] Using max model len 2048",
    "(EngineCore pid=2) INFO 12-02 00:00:02 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: x",
    "(EngineCore pid=2) INFO 12-02 00:00:05 [model_runner.py:281] Loading model from scratch...",
    "(EngineCore pid=2) INFO 12-02 00:00:07 [model_runner.py:302] Model loading took 1.12 GiB and 2.500000 seconds",
    "(EngineCore pid=2) INFO 12-02 00:00:09 [backends.py:1148] Dynamo bytecode transform time: 2.00 s",
    "(EngineCore pid=2) INFO 12-02 00:00:10 [a.py:1] Directly load the compiled graph(s) from the cache, took 1.25 s",
    "(EngineCore pid=2) INFO 12-02 00:00:10 [monitor.py:53] torch.compile took 3.50 s in total",
    "(EngineCore pid=2) INFO 12-02 00:00:12 [kv_cache_utils.py:2146] GPU KV cache size: 100 tokens",
    "(EngineCore pid=2) INFO 12-02 00:00:15 [model_runner.py:722] Graph capturing finished in 1 secs, took 0.14 GiB",
    "(EngineCore pid=2) INFO 12-02 00:00:19 [a.py:1] init engine (profile, create kv cache, warmup model) took 12.00 s",
    "(APIServer pid=1) INFO 12-02 00:00:20 [api_server.py:616] Starting vLLM server on http://127.0.0.1:1",
)
TOLD = {
    "arguments": 2.0, "engine": 10.0, "distributed": 3.0, "load": 2.5, "dynamo": 2.0, "graph": 1.25, "compile": 0.25,
    "profile": 1.5, "kv_cache": 2.0, "graphs": 1.0, "warmup": 4.0, "http": 1.0,
}  # fmt: skip


class TestOneLog:
    def test_is_read_by_its_stamps_and_words_over_midnight(self):
        assert measure_phases(read_recorded(START)) == TOLD

    @pytest.mark.parametrize("line", range(1, len(START)))
    def test_of_a_start_that_did_not_get_through_gives_no_times(self, line):
        with pytest.raises(KeyError):
            measure_phases(read_recorded(START[:line] + START[line + 1 :]))

    @pytest.mark.parametrize("name", [*ALONE.values(), *TOGETHER])
    def test_adds_up_to_what_the_engine_says_of_itself(self, name):
        recorded = read_recorded((SAMPLES / name).read_text("utf-8").split("\n"))
        phases = measure_phases(recorded)
        after_weights = PHASES[PHASES.index("dynamo") : PHASES.index("http")]
        assert sum(phases[phase] for phase in after_weights) == pytest.approx(recorded.stated["init"], abs=0.01)


class TestGrowth:
    @pytest.mark.parametrize(("alone", "together", "growth"), [(2.0, 3.0, 1.5), (3.0, 2.0, 1.0), (0.0, 0.0, 1.0)])
    def test_is_the_time_together_by_the_time_alone_and_never_below_one(self, alone, together, growth):
        assert measure_growth(alone=alone, together=together) == growth

    def test_of_compiling_is_what_the_recorded_starts_had(self):
        """torch.compile alone 3.41 s; three at once 4.26, 4.69 and 5.78 s."""
        phases = make_times()["phases"]
        names = ("dynamo", "graph", "compile")
        assert sum(phases[name]["alone"]["warm"]["seconds"] for name in names) == pytest.approx(3.41)
        assert sum(phases[name]["together"]["seconds"] for name in names) == pytest.approx(4.91, abs=0.01)


class TestWrittenFile:
    def test_is_what_the_script_makes_from_the_logs(self):
        assert WRITTEN.read_text("utf-8") == write_text(), "run python -m rig.phase_times"

    def test_names_a_file_of_this_repository_for_every_value(self):
        times = make_times()
        values = [
            value for phase in times["phases"].values() for value in (*phase["alone"].values(), phase["together"])
        ]
        named = {name for value in values for name in value["from"]}
        assert all(value["from"] for value in values)
        assert {name for name in named if not (ROOT / times["logs_in"] / name).is_file()} == set()
