import pytest

from deployments.planning.phases import Progress
from deployments.planning.readiness import (
    Degraded,
    Expectation,
    NotReady,
    Ready,
    Unverified,
    expectation_of,
    judge_readiness,
)

EXPECTED = Expectation(served_name="tiny", model_path="/models/qwen3", max_model_len=512, kv_tokens=377_856)


def probe(**changes):
    return {
        "health": 200,
        "models": [{"id": "tiny", "root": "/models/qwen3", "max_model_len": 512}],
        "answer": {"ok": True, "status": 200, "text": "a", "tokens": 1, "ms": 25, "error": None},
        "cache_config": None,
        "version": "0.32.0",
    } | changes


def judge(*, expected=EXPECTED, kv_tokens=377_856, alive=True, listening=True, **changes):
    progress = Progress(kv_tokens=kv_tokens, listening=listening)
    return judge_readiness(probe=probe(**changes), expected=expected, progress=progress, process_alive=alive)


class TestJudgeReadiness:
    def test_is_ready_when_all_is_as_planned(self):
        verdict = judge()
        assert isinstance(verdict, Ready)
        assert verdict.numbers == {"ms": 25, "tokens": 1}

    def test_names_a_cache_that_lost_a_race(self):
        verdict = judge(kv_tokens=10_672)
        assert isinstance(verdict, Degraded)
        assert (verdict.code, verdict.sentence) == (
            "KV_CACHE_TOO_SMALL",
            "KV cache 10,672 of 377,856 tokens.",
        )

    @pytest.mark.parametrize(("tokens", "kind"), [(358_964, Ready), (358_963, Degraded), (400_000, Ready)])
    def test_allows_five_percent_less(self, tokens, kind):
        assert isinstance(judge(kv_tokens=tokens), kind)

    def test_reads_the_cache_from_metrics_where_the_log_does_not_say(self):
        info = {"kv_cache_size_tokens": "9312", "num_gpu_blocks": "582", "block_size": "16"}
        assert judge(kv_tokens=None, cache_config=info).numbers["found"] == 9312
        assert judge(kv_tokens=None, cache_config={"num_gpu_blocks": 582, "block_size": 16}).numbers["found"] == 9312
        assert isinstance(judge(kv_tokens=None, cache_config={"num_gpu_blocks": "23616", "block_size": "16"}), Ready)

    @pytest.mark.parametrize(
        "info",
        [
            None,
            {},
            "x",
            {"num_gpu_blocks": "None", "block_size": "16"},
            {"num_gpu_blocks": True, "block_size": 1},
        ],
    )
    def test_is_unverified_where_nothing_tells_the_cache(self, info):
        verdict = judge(kv_tokens=None, cache_config=info)
        assert isinstance(verdict, Unverified)
        assert verdict.code == "KV_UNKNOWN"

    def test_needs_no_expectation_of_a_cache_whose_shape_is_unknown(self):
        assert isinstance(
            judge(expected=Expectation(served_name="tiny", model_path="/models/qwen3"), kv_tokens=5), Ready
        )

    def test_needs_no_cache_for_an_embedding(self):
        expected = Expectation(served_name="tiny", model_path="/models/qwen3", task="embed")
        verdict = judge(expected=expected, kv_tokens=None, answer={"ok": True, "tokens": None})
        assert isinstance(verdict, Ready)
        assert "embedding" in verdict.sentence

    def test_names_a_mismatch_of_the_served_name_with_the_fix(self):
        verdict = judge(models=[{"id": "other", "root": "/models/qwen3", "max_model_len": 512}])
        assert (verdict.code, verdict.sentence) == (
            "SERVED_NAME_MISMATCH",
            "Port answers as other, not as tiny.",
        )
        assert "Set served_model_name to other" in verdict.next_step

    def test_accepts_the_name_among_several(self):
        assert isinstance(
            judge(models=[{"id": "lora"}, {"id": "tiny", "root": "/models/qwen3/", "max_model_len": 512}]),
            Ready,
        )

    def test_names_another_model_under_the_right_name(self):
        verdict = judge(models=[{"id": "tiny", "root": "/models/other", "max_model_len": 512}])
        assert (verdict.code, verdict.numbers["found"]) == ("MODEL_ROOT_MISMATCH", "/models/other")

    def test_names_another_context_length(self):
        assert (
            judge(models=[{"id": "tiny", "root": "/models/qwen3", "max_model_len": 256}]).code
            == "CONTEXT_LENGTH_MISMATCH"
        )

    def test_does_not_believe_health_of_a_hung_engine(self):
        verdict = judge(answer={"ok": False, "status": None, "error": "no byte within 30 s", "ms": 30000})
        assert isinstance(verdict, NotReady)
        assert (verdict.code, verdict.waiting) == ("NO_ANSWER", False)
        assert "no byte within 30 s" in verdict.sentence

    @pytest.mark.parametrize("tokens", [0, None, "1"])
    def test_wants_a_token(self, tokens):
        assert judge(answer={"ok": True, "tokens": tokens}).code == "NO_TOKEN"

    def test_is_unverified_when_the_model_was_not_asked(self):
        assert judge(answer=None).code == "NO_ANSWER_TRIED"

    @pytest.mark.parametrize(("listening", "waiting"), [(False, True), (True, False)])
    def test_waits_only_while_the_log_says_it_starts(self, listening, waiting):
        verdict = judge(models=None, listening=listening)
        assert (verdict.code, verdict.waiting) == ("NOT_LISTENING", waiting)

    def test_is_not_ready_when_the_process_is_gone_whatever_answers(self):
        assert judge(alive=False).code == "PROCESS_GONE"

    def test_is_unverified_when_the_process_was_not_observed(self):
        assert judge(alive=None).code == "PROCESS_UNKNOWN"

    def test_waits_for_the_first_probe(self):
        verdict = judge_readiness(probe=None, expected=EXPECTED, progress=Progress(), process_alive=True)
        assert (verdict.code, verdict.waiting) == ("NOT_PROBED", True)

    @pytest.mark.parametrize("models", [[], [1], ["x"], "x", {}, 7])
    def test_survives_answers_of_the_wrong_shape(self, models):
        assert not isinstance(judge(models=models), Ready)


class TestExpectationOf:
    def test_reads_a_launch_of_a_plan(self):
        launch = {
            "served_name": "a",
            "model_path": "/m",
            "task": "embed",
            "expected": {"max_model_len": 5, "kv_tokens": None},
        }
        assert expectation_of(launch) == Expectation(served_name="a", model_path="/m", task="embed", max_model_len=5)
