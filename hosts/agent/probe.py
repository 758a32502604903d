"""probe: whether the instance does its job.

Asked with the model's own task, because /health answers 200 on a hung engine.
Measured: with EngineCore stopped, /health, /version, /v1/models and /metrics answer within a millisecond
(vLLM 0.25.1, 0.32.0).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

from .arguments import read_integer, read_number, read_text
from .call import Call
from .refusal import bad_request
from .system import HttpAnswer

SIDE_TIMEOUT_S = 5.0
TEXT_LIMIT = 500
MAX_TOKENS = 8
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


def build_question(task: str, served_name: str) -> Dict[str, Any]:
    """Path and body of the smallest request that makes the engine work."""
    if task == "generate":
        body = {
            "prompt": "The capital of France is",
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        return {"path": "/v1/completions", "body": {"model": served_name, **body}}
    if task == "embed":
        return {"path": "/v1/embeddings", "body": {"model": served_name, "input": "capital of France"}}
    if task == "score":
        return {
            "path": "/score",
            "body": {"model": served_name, "text_1": "capital of France", "text_2": "Paris"},
        }
    raise bad_request("'task' must be generate, embed or score.", field="task")


def read_answer(task: str, answer: HttpAnswer) -> Dict[str, Any]:
    """{"ok", "status", "text", "tokens", "ms", "error"}.

    Ok only where the task's own result is in the answer.
    """
    found: Dict[str, Any] = {
        "ok": False,
        "status": answer.status,
        "text": None,
        "tokens": None,
        "ms": round(answer.seconds * 1000),
        "error": answer.error,
    }
    content = parse_json(answer.body)
    if answer.status != 200:
        if answer.error is None:
            found["error"] = answer.body.decode("utf-8", "replace").replace("\0", "\ufffd")[:TEXT_LIMIT] or "no text"
        return found
    usage = content.get("usage")
    if task == "generate":
        choices = content.get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        text = first.get("text")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        found["text"] = text[:TEXT_LIMIT] if isinstance(text, str) else None
        found["tokens"] = tokens if isinstance(tokens, int) else None
        found["ok"] = bool(found["tokens"] or (found["tokens"] is None and found["text"]))
    else:
        data = content.get("data")
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        value = first.get("embedding" if task == "embed" else "score")
        found["tokens"] = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        found["text"] = (
            f"{len(value)} dimensions" if isinstance(value, list) else None if value is None else str(value)[:50]
        )
        found["ok"] = bool(value) if isinstance(value, (list, str)) else isinstance(value, float)
    if not found["ok"]:
        found["error"] = "the answer holds no result of the task"
    return found


def parse_json(body: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_models(answer: HttpAnswer) -> Optional[List[Dict[str, Any]]]:
    data = parse_json(answer.body).get("data")
    if answer.status != 200 or not isinstance(data, list):
        return None
    return [
        {name: model.get(name) for name in ("id", "root", "max_model_len")}
        for model in data[:50]
        if isinstance(model, dict)
    ]


def read_cache_config(answer: HttpAnswer) -> Optional[Dict[str, Any]]:
    """The labels of vllm:cache_config_info; numbers as numbers. None where the series is not there."""
    if answer.status != 200:
        return None
    match = _CACHE_CONFIG.search(answer.body.decode("utf-8", "replace"))
    if match is None:
        return None
    return {name: _as_number(value) for name, value in _LABEL.findall(match.group(1))[:60]}


def _as_number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203 - two rounds
            continue
    return None if text == "None" else {"True": True, "False": False}.get(text, text[:200])


def probe(call: Call) -> Dict[str, Any]:
    args = call.args
    address = read_text(args, "address", "127.0.0.1")
    port = read_integer(args, "port", low=1, high=65535)
    task = read_text(args, "task", "generate")
    deadline_s = read_number(args, "deadline_s", default=30.0, low=0.1, high=600)
    question = build_question(task, read_text(args, "served_name"))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - asked, not bound
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    headers = {"Content-Type": "application/json", "Connection": "close"}
    key = read_text(args, "api_key", None)
    if key:
        headers["Authorization"] = "Bearer " + key
    side = min(SIDE_TIMEOUT_S, deadline_s)

    def get(path: str) -> HttpAnswer:
        return call.system.http("GET", base + path, headers=headers, timeout=side)

    health = get("/health")
    refused = health.status is None and health.seconds < side / 2  # nobody listens: the rest would say the same
    nothing = HttpAnswer(None, error=health.error)
    answer = (
        nothing
        if refused
        else call.system.http(
            "POST",
            base + question["path"],
            body=json.dumps(question["body"]).encode("utf-8"),
            headers=headers,
            timeout=deadline_s,
        )
    )
    models, metrics, version = (
        (nothing, nothing, nothing) if refused else (get("/v1/models"), get("/metrics"), get("/version"))
    )
    found_version = parse_json(version.body).get("version") if version.status == 200 else None
    return {
        "health": health.status,
        "models": read_models(models),
        "answer": read_answer(task, answer),
        "cache_config": read_cache_config(metrics),
        "version": found_version if isinstance(found_version, str) else None,
    }
