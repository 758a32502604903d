"""A death that vLLM only mentions: a warning, exit code 0, no error anywhere."""

from deployments.planning.failure import explain_failure

SERVED = "INFO:     Application startup complete."
# Recorded from vLLM 0.32.0, CPU build, after EngineCore was killed.
GONE = (
    "(APIServer pid=35) WARNING 12-01 06:39:51 [core_client.py:713] [shutdown] MPClient: engine core exited "
    "unexpectedly; starting cleanup"
)
ERROR = "(EngineCore pid=9) ERROR 12-01 06:39:50 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


class TestNotice:
    def test_names_an_engine_that_vanished_although_the_exit_code_is_zero(self):
        cause = explain_failure(lines=[SERVED, GONE], exit_code=0, exit_signal=None)
        assert (cause.code, cause.line_number) == ("ENGINE_GONE", 2)

    def test_gives_way_to_a_real_error(self):
        cause = explain_failure(lines=[SERVED, ERROR, GONE], exit_code=0, exit_signal=None)
        assert cause.code not in ("ENGINE_GONE", "ENDED_WITHOUT_ERROR")
        assert cause.line_number == 2

    def test_does_not_blame_what_an_earlier_start_survived(self):
        cause = explain_failure(lines=[GONE, SERVED], exit_code=0, exit_signal=None)
        assert cause.code != "ENGINE_GONE"
