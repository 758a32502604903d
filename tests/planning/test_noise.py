import pytest

from deployments.planning.log_lines import parse_line
from deployments.planning.noise import classify_noise
from tests.planning.samples_reader import SAMPLES, read_sample

SERVED = sorted(
    str(path.relative_to(SAMPLES)) for folder in ("cpu", "h200") for path in (SAMPLES / folder).glob("*.log")
)
NOT_NOISE = [
    "WARNING 12-01 01:12:00 [a.py:1] No available shared memory broadcast block found in 60 seconds.",
    "(APIServer pid=1) WARNING 12-01 01:12:00 [a.py:1] Sequence group 1 is preempted",
    "ERROR 12-01 01:12:00 [a.py:1] EngineCore failed to start.",
    "ERROR 12-01 01:12:00 [a.py:1] the chat_template is broken",
    "OSError: [Errno 98] Address already in use",
    'INFO:     10.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable',
    'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    "INFO 12-01 01:12:00 [a.py:1] GPU KV cache size: 116,080 tokens",
]


class TestClassifyNoise:
    @pytest.mark.parametrize("name", [name for name in SERVED if name != "cpu/pp2.log"])
    def test_knows_every_warning_of_the_recorded_instances_that_served(self, name):
        unknown = [
            line.message
            for line in map(parse_line, read_sample(name))
            if line.level in ("WARNING", "ERROR") and classify_noise(line) is None
        ]
        # A repeated argument, and a request that met the shutdown: both are worth seeing.
        worth_seeing = ("Found duplicate keys", "Exception in ASGI application")
        assert [message for message in unknown if not message.startswith(worth_seeing)] == []

    def test_leaves_the_errors_of_a_death_in_view(self):
        lines = [parse_line(line) for line in read_sample("failed/killworker.log")]
        errors = [line for line in lines if line.level == "ERROR"]
        assert errors
        assert all(classify_noise(line) is None for line in errors)

    @pytest.mark.parametrize("text", NOT_NOISE)
    def test_leaves_everything_else_in_view(self, text):
        assert classify_noise(parse_line(text)) is None

    def test_gives_a_code_and_a_reason(self):
        noise = classify_noise(
            parse_line("WARNING 12-01 01:12:00 [s.py:255] Found ulimit of 20000 and failed to automatically increase")
        )
        assert (noise.code, noise.reason[-1]) == ("ULIMIT", ".")

    def test_folds_the_error_of_a_client_that_asked_for_another_model(self):
        text = "ERROR 12-01 01:04:52 [serving.py:222] Error with model error=ErrorInfo(message='x', code=404)"
        assert classify_noise(parse_line(text)).code == "CLIENT_WRONG_MODEL"
