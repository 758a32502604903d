from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.channel import Channel

# The series as vLLM 0.32.0 (CPU build) prints it, shortened.
LABELS = (
    'block_size="128",cache_dtype="auto",engine="0",gpu_memory_utilization="0.92",num_cpu_blocks="None",'
    'num_gpu_blocks="1170",prefix_caching_hash_algo="sha256",is_attention_free="False"'
)
METRICS = f"""\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{{LABELS}}} 1.0
"""
GOOD = {
    "/health": (200, ""),
    "/version": (200, '{"version":"0.32.0"}'),
    "/v1/models": (
        200,
        '{"data": [{"id": "tiny", "root": "/models/qwen3", "max_model_len": 512, "secret": 1}]}',
    ),
    "/metrics": (200, METRICS),
    "/v1/completions": (200, '{"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 8}}'),
    "/v1/embeddings": (200, '{"data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 3}}'),
    "/score": (200, '{"data": [{"score": 0.25}], "usage": {"prompt_tokens": 5}}'),
}


class Instance:
    """An HTTP surface like vLLM's whose answers the test decides."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = dict(GOOD)
        self.hanging: set[str] = set()
        self.asked: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str | None] = {}
        instance = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                if size:
                    instance.asked[self.path] = json.loads(self.rfile.read(size))
                instance.keys[self.path] = self.headers.get("Authorization")
                if self.path in instance.hanging:
                    time.sleep(2)
                code, text = instance.answers.get(self.path, (404, '{"detail":"Not Found"}'))
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET  # noqa: N815 - the name that http.server calls

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def instance() -> Iterator[Instance]:
    found = Instance()
    yield found
    found.server.shutdown()
    found.server.server_close()


class TestProbe:
    def test_generates_a_token(self, agent: Channel, instance: Instance) -> None:
        found = agent.ask("probe", port=instance.port, served_name="tiny", task="generate", api_key="k1")
        assert (found["health"], found["version"]) == (200, "0.32.0")
        assert found["models"] == [{"id": "tiny", "root": "/models/qwen3", "max_model_len": 512}]
        assert {name: found["answer"][name] for name in ("ok", "status", "text", "tokens", "error")} == {
            "ok": True,
            "status": 200,
            "text": " Paris",
            "tokens": 8,
            "error": None,
        }
        assert found["cache_config"]["num_gpu_blocks"] == 1170
        assert found["cache_config"]["num_cpu_blocks"] is None
        assert found["cache_config"]["is_attention_free"] is False
        assert instance.asked["/v1/completions"]["model"] == "tiny"
        assert instance.keys["/v1/completions"] == "Bearer k1"

    @pytest.mark.parametrize(("task", "text"), [("embed", "2 dimensions"), ("score", "0.25")])
    def test_asks_for_the_models_own_task(self, agent: Channel, instance: Instance, task: str, text: str) -> None:
        answer = agent.ask("probe", port=instance.port, served_name="tiny", task=task)["answer"]
        assert (answer["ok"], answer["text"]) == (True, text)

    def test_finds_a_hung_engine_behind_a_healthy_server(self, agent: Channel, instance: Instance) -> None:
        instance.hanging.add("/v1/completions")
        found = agent.ask("probe", port=instance.port, served_name="tiny", deadline_s=0.3)
        assert found["health"] == 200
        assert (found["answer"]["ok"], found["answer"]["status"]) == (False, None)
        assert found["answer"]["error"] == "no answer in time"
        assert found["answer"]["ms"] >= 300

    @pytest.mark.parametrize(
        ("code", "text", "status"),
        [
            (404, '{"error":{"message":"The model `tiny` does not exist."}}', 404),
            (500, "", 500),
            (200, "{}", 200),
            (200, "no JSON", 200),
            (200, '{"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}', 200),
        ],
    )
    def test_takes_no_answer_without_a_token_for_good(
        self, agent: Channel, instance: Instance, code: int, text: str, status: int
    ) -> None:
        instance.answers["/v1/completions"] = (code, text)
        answer = agent.ask("probe", port=instance.port, served_name="tiny")["answer"]
        assert (answer["ok"], answer["status"]) == (False, status)
        assert answer["error"]

    def test_says_unknown_where_nothing_was_observed(self, agent: Channel, instance: Instance) -> None:
        instance.answers = {"/v1/completions": GOOD["/v1/completions"]}
        found = agent.ask("probe", port=instance.port, served_name="tiny")
        assert (found["health"], found["models"], found["cache_config"], found["version"]) == (
            404,
            None,
            None,
            None,
        )

    def test_reports_a_port_where_nobody_listens(self, agent: Channel, instance: Instance) -> None:
        instance.server.shutdown()
        instance.server.server_close()
        found = agent.ask("probe", port=instance.port, served_name="tiny")
        assert (found["health"], found["answer"]["ok"]) == (None, False)
        assert "refused" in found["answer"]["error"]

    def test_refuses_a_task_it_does_not_know(self, agent: Channel) -> None:
        assert agent.refused("probe", port=1, served_name="x", task="paint")["code"] == "BAD_REQUEST"
