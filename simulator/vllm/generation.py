"""Tokens out of nothing: timing, counters and shapes of a generation, with words instead of a model."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from simulator.vllm.instance import Instance

WORDS = tuple(
    f" {word}"
    for word in [
        "the",
        "fleet",
        "answers",
        "with",
        "simulated",
        "tokens",
        "from",
        "a",
        "stand-in,",
        "one",
        "after",
        "another",
        "until",
        "its",
        "limit.",
    ]
)


class EngineDeadError(Exception):
    """EngineCore has gone: vLLM's EngineDeadError."""


@dataclass(frozen=True)
class Generation:
    """One request after its checks. Lengths in tokens."""

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool
    include_usage: bool
    seed: int

    @property
    def length(self) -> int:
        """How many tokens come out: the limit, or an end of text after at most 64."""
        return self.max_tokens if self.ignore_eos else min(self.max_tokens, 64)

    @property
    def finish_reason(self) -> str:
        return "length" if self.length == self.max_tokens else "stop"


def count_tokens(text: str) -> int:
    """About four characters a token, at least one."""
    return max(1, (len(text) + 3) // 4)


async def produce(instance: Instance, generation: Generation) -> AsyncIterator[str]:
    """Give the tokens one by one, at the pace of timings.json; wait where the engine hangs.

    EngineDeadError where it goes.
    """
    metrics, timings = instance.metrics, instance.timings
    began = time.monotonic()
    await _wait_for_engine(instance)
    instance.stats.wake()
    metrics.running += 1
    metrics.cached_tokens += generation.prompt_tokens
    instance.mark_busy(True)
    made, finished = 0, "abort"
    try:
        last = time.monotonic()
        for index in range(generation.length):
            await asyncio.sleep(timings.answer("time_to_first_token" if index == 0 else "inter_token"))
            await _wait_for_engine(instance)
            now = time.monotonic()
            metrics.observe("time_to_first_token_seconds" if index == 0 else "inter_token_latency_seconds", now - last)
            if index == 0:
                metrics.prompt_tokens += generation.prompt_tokens
            metrics.observe("iteration_tokens_total", 1 if index else generation.prompt_tokens)
            last, made = now, made + 1
            metrics.generation_tokens += 1
            metrics.cached_tokens += 1
            yield WORDS[(generation.seed + index) % len(WORDS)]
        finished = generation.finish_reason
    except EngineDeadError:
        finished = "error"
        raise
    finally:
        metrics.running -= 1
        metrics.cached_tokens -= generation.prompt_tokens + made
        metrics.finished[finished] += 1
        metrics.observe("e2e_request_latency_seconds", time.monotonic() - began)
        metrics.observe("request_prompt_tokens", generation.prompt_tokens)
        metrics.observe("request_generation_tokens", made)
        if metrics.running == 0:
            instance.mark_busy(False)


async def _wait_for_engine(instance: Instance) -> None:
    """Go on where the engine works.

    A SIGTERM leaves open answers hanging until their client goes (measured, vLLM 0.32.0).
    """
    while not instance.answers or instance.aborted.is_set():
        if instance.engine_dead.is_set() and not instance.aborted.is_set():
            raise EngineDeadError
        await instance.pause()
    if instance.engine_dead.is_set():
        raise EngineDeadError


def _usage(generation: Generation, made: int) -> dict[str, Any]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + made,
        "completion_tokens": made,
    }


def _fingerprint(instance: Instance) -> str:
    return f"vllm-{instance.version}-ec450da7"


async def generate_whole(instance: Instance, generation: Generation) -> dict[str, Any]:
    """Give the body of a completion or chat completion that is not streamed."""
    text = "".join([piece async for piece in produce(instance, generation)])
    choice: dict[str, Any] = {"index": 0}
    if generation.chat:
        choice["message"] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
    else:
        choice["text"] = text
    choice |= {
        "logprobs": None,
        "finish_reason": generation.finish_reason,
        "stop_reason": None,
        "token_ids": None,
    }
    usage = _usage(generation, generation.length) | {
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    return {
        "id": instance.make_id("chatcmpl" if generation.chat else "cmpl"),
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": int(time.time()),
        "model": generation.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": _fingerprint(instance),
        "usage": usage,
        "kv_transfer_params": None,
    }


async def generate_stream(instance: Instance, generation: Generation) -> AsyncIterator[bytes]:
    """Server-sent events: chunks, a usage chunk with empty choices where asked for, then [DONE]."""
    head = {
        "id": instance.make_id("chatcmpl" if generation.chat else "cmpl"),
        "object": "chat.completion.chunk" if generation.chat else "text_completion",
        "created": int(time.time()),
        "model": generation.model,
    }
    if generation.chat:
        yield _event(head, {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})
    made = 0
    try:
        async for piece in produce(instance, generation):
            made += 1
            last = made == generation.length
            choice: dict[str, Any] = {"delta": {"content": piece}} if generation.chat else {"text": piece}
            choice |= {"logprobs": None, "finish_reason": generation.finish_reason if last else None}
            if last:
                choice["stop_reason"] = None
            yield _event(head, choice | {"token_ids": None})
    except EngineDeadError:
        error = {
            "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        yield b"data: " + json.dumps({"error": error}, separators=(",", ":")).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"
        return
    if generation.include_usage:
        body = head | {
            "choices": [],
            "usage": _usage(generation, made),
            "system_fingerprint": _fingerprint(instance),
        }
        yield b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _event(head: dict[str, Any], choice: dict[str, Any]) -> bytes:
    body = head | {"choices": [{"index": 0} | choice]}
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
