from __future__ import annotations

import json

import pytest

from simulator.fleet import wait_for

LONG = "word " * 12_000


def read_events(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part]


def read_metric(text: str, name: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


@pytest.fixture
def served(launcher):
    return launcher.start("gpu-a", "--served-model-name", "tiny").wait_ready()


ERRORS = {
    "unknown model": (
        "/v1/completions",
        {"model": "nope", "prompt": "x"},
        404,
        {
            "message": "The model `nope` does not exist. Valid aliases: tiny.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        },
    ),
    "too many tokens": (
        "/v1/completions",
        {"model": "tiny", "prompt": "x", "max_tokens": 5000},
        400,
        {
            "message": "max_tokens=5000 cannot be greater than max_model_len=4096. Please request fewer "
            "output tokens. "
            "(parameter=max_tokens, value=5000)",
            "type": "BadRequestError",
            "param": "max_tokens",
            "code": 400,
        },
    ),
    "prompt too long": (
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": LONG}]},
        400,
        {
            "message": "This model's maximum context length is 4096 tokens. However, your prompt contains "
            "60000 characters "
            "(more than 49152 characters, which is the upper bound for 4096 input tokens). Please reduce "
            "the length of the "
            "input prompt. (parameter=input_text, value=60000)",
            "type": "BadRequestError",
            "param": "input_text",
            "code": 400,
        },
    ),
    "missing field": (
        "/v1/chat/completions",
        {"model": "tiny"},
        400,
        {
            "message": "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field "
            "required', "
            "'input': '<dict of 1 items>'}",
            "type": "Bad Request",
            "param": "body.messages",
            "code": 400,
        },
    ),
}


class TestSurface:
    def test_answers_health_and_ping_with_nothing(self, served):
        assert served.ask("GET", "/health") == (200, "")
        assert served.ask("GET", "/ping") == (200, "")

    def test_names_its_version_and_model(self, served):
        assert served.ask("GET", "/version") == (200, {"version": "0.25.1"})
        status, body = served.ask("GET", "/v1/models")
        model = body["data"][0]
        assert status == 200
        assert (model["id"], model["max_model_len"]) == ("tiny", 4096)
        assert model["root"].endswith("/models/Qwen3-0.6B")

    def test_completes_a_prompt(self, served):
        status, body = served.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 8})
        assert status == 200
        assert body["object"] == "text_completion"
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"] | {"prompt_tokens_details": None, "completion_tokens_details": None} == body["usage"]
        assert (body["usage"]["completion_tokens"], body["usage"]["total_tokens"]) == (8, 10)

    def test_streams_a_chat_with_usage_and_done(self, served):
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 6,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        status, text = served.ask("POST", "/v1/chat/completions", body)
        events = read_events(text)
        chunks = [json.loads(event) for event in events[:-1]]
        assert status == 200
        assert events[-1] == "[DONE]"
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 6 + ["length"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 6

    def test_tokenizes(self, served):
        status, body = served.ask("POST", "/tokenize", {"model": "tiny", "prompt": "hello world"})
        assert status == 200
        assert body["count"] == len(body["tokens"])

    @pytest.mark.parametrize("name", ERRORS)
    def test_refuses_in_the_real_shape(self, served, name):
        path, body, status, error = ERRORS[name]
        assert served.ask("POST", path, body) == (status, {"error": error})

    def test_refuses_malformed_json(self, served):
        status, body = served.ask("POST", "/v1/completions", b'{"model":')
        assert status == 400
        assert body["error"]["type"] == "Bad Request"
        assert "'json_invalid', 'loc': 'body.9'" in body["error"]["message"]

    def test_has_another_shape_for_unknown_paths_and_methods(self, served):
        assert served.ask("GET", "/nope") == (404, {"detail": "Not Found"})
        assert served.ask("GET", "/v1/completions") == (405, {"detail": "Method Not Allowed"})


class TestMetrics:
    def test_moves_with_requests(self, served):
        before = served.ask("GET", "/metrics")[1]
        served.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 8})
        after = served.ask("GET", "/metrics")[1]
        assert read_metric(before, "vllm:generation_tokens_total") == 0
        assert read_metric(after, "vllm:generation_tokens_total") == 8
        assert read_metric(after, "vllm:prompt_tokens_total") == 2
        assert read_metric(after, "vllm:time_to_first_token_seconds_count") == 1
        assert 'finished_reason="length",model_name="tiny"} 1.0' in after
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0' in after

    def test_tells_the_cache_that_the_log_tells(self, served):
        text = served.ask("GET", "/metrics")[1]
        tokens = served.log.split("GPU KV cache size: ")[1].split(" ")[0].replace(",", "")
        assert f'kv_cache_size_tokens="{tokens}"' in text

    def test_hang_shows_running_zero_while_a_request_waits(self, launcher):
        launcher.fleet["gpu-a"].fail_next("hang")
        started = launcher.start("gpu-a").wait_ready()
        with pytest.raises(TimeoutError):
            started.ask("POST", "/v1/completions", {"prompt": "x"}, timeout=0.3)
        assert started.ask("GET", "/health")[0] == 200
        assert read_metric(started.ask("GET", "/metrics")[1], "vllm:num_requests_running") == 0


class TestApiKey:
    @pytest.mark.parametrize("by", ["argument", "environment"])
    def test_guards_v1_only(self, launcher, by):
        words = ("--api-key", "secret") if by == "argument" else ()
        env = {"VLLM_API_KEY": "secret"} if by == "environment" else {}
        started = launcher.start("gpu-a", *words, env=env).wait_ready()
        assert started.ask("GET", "/v1/models") == (401, {"error": "Unauthorized"})
        assert started.ask("GET", "/v1/models", Authorization="Bearer wrong")[0] == 401
        assert started.ask("GET", "/v1/models", Authorization="Bearer secret")[0] == 200
        assert started.ask("GET", "/health")[0] == started.ask("GET", "/metrics")[0] == 200
        assert "'secret'" not in started.log


class TestClientThatLeaves:
    def test_ends_its_request(self, launcher):
        started = launcher.start("gpu-a", speed=50).wait_ready()
        with pytest.raises(TimeoutError):
            started.ask(
                "POST",
                "/v1/completions",
                {"prompt": "x", "max_tokens": 4000, "ignore_eos": True},
                timeout=0.1,
            )
        assert wait_for(lambda: 'finished_reason="abort",model_name' in started.ask("GET", "/metrics")[1])
        assert wait_for(lambda: read_metric(started.ask("GET", "/metrics")[1], "vllm:num_requests_running") == 0)
