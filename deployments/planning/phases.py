"""From log lines to the phase of a start, with the figures the log gives on the way.

The marker texts by version are those of vLLM's sources 0.6.6 to 0.33.0, checked against recorded logs of
0.25.1 (H200) and 0.32.0 (CPU build). A phase says how far the start has come by its own words; that an
instance serves is judged in `readiness`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from deployments.planning.log_lines import LogLine, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Phase(StrEnum):
    WAITING = "waiting"
    PROCESS = "process"
    CONFIG = "config"
    ENGINE = "engine"
    DISTRIBUTED = "distributed"
    LOADING = "loading"
    LOADED = "loaded"
    COMPILING = "compiling"
    PROFILED = "profiled"
    KV_CACHE = "kv_cache"
    GRAPHS = "graphs"
    ENGINE_READY = "engine_ready"
    HTTP = "http"
    LISTENING = "listening"
    ENDING = "ending"


PHASE_ORDER: tuple[Phase, ...] = tuple(Phase)
PHASE_LABEL: Mapping[Phase, str] = {
    Phase.WAITING: "Waiting for the first line",
    Phase.PROCESS: "Process started",
    Phase.CONFIG: "Model configuration read",
    Phase.ENGINE: "Engine starting",
    Phase.DISTRIBUTED: "Workers connected",
    Phase.LOADING: "Loading weights",
    Phase.LOADED: "Weights loaded",
    Phase.COMPILING: "Compiling",
    Phase.PROFILED: "Memory measured",
    Phase.KV_CACHE: "KV cache created",
    Phase.GRAPHS: "CUDA graphs captured",
    Phase.ENGINE_READY: "Engine ready",
    Phase.HTTP: "Server starting",
    Phase.LISTENING: "Listening",
    Phase.ENDING: "Shutting down",
}
# Percent of a typical start that has passed when the phase begins. Times of the recorded logs: H200 with a
# warm compile cache
# (31 s from the first line) and the CPU build (16 s); the imports before the first line are the largest
# single part of both.
PHASE_PERCENT: Mapping[Phase, int] = {
    Phase.WAITING: 0,
    Phase.PROCESS: 15,
    Phase.CONFIG: 18,
    Phase.ENGINE: 35,
    Phase.DISTRIBUTED: 38,
    Phase.LOADING: 42,
    Phase.LOADED: 60,
    Phase.COMPILING: 64,
    Phase.PROFILED: 76,
    Phase.KV_CACHE: 80,
    Phase.GRAPHS: 86,
    Phase.ENGINE_READY: 92,
    Phase.HTTP: 96,
    Phase.LISTENING: 100,
    Phase.ENDING: 100,
}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the log of one launch has said so far.

    Sizes in GiB and times in seconds as vLLM prints them; None = not said.
    """

    phase: Phase = Phase.WAITING
    lines: int = 0
    vllm_version: str | None = None
    architecture: str | None = None
    max_model_len: int | None = None
    load_percent: int | None = None
    graph_percent: int | None = None
    model_loading_gib: float | None = None
    model_loading_s: float | None = None
    compile_s: float | None = None
    kv_available_gib: float | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    graphs_gib: float | None = None
    init_engine_s: float | None = None
    suggested_kv_bytes: int | None = None
    ready_line: int | None = None
    listening: bool = False

    @property
    def label(self) -> str:
        return PHASE_LABEL[self.phase]

    @property
    def engine_ready(self) -> bool:
        """Its memory is measured and filled: nothing that starts beside it disturbs it any more."""
        return self.init_engine_s is not None or self.listening

    @property
    def percent(self) -> int:
        """How full to draw the bar, 0 to 100; within "loading" it follows the shards that are read."""
        begin = PHASE_PERCENT[self.phase]
        if self.phase is Phase.LOADING and self.load_percent is not None:
            return begin + (PHASE_PERCENT[Phase.LOADED] - begin) * self.load_percent // 100
        return begin


# Phase, and the text that begins or ends it. The first pattern that matches counts.
_MARKERS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        Phase.ENDING,
        re.compile(r"\[shutdown\] API server: shutdown triggered|Shutting down FastAPI HTTP server|^Shutting down$"),
    ),
    (Phase.LISTENING, re.compile(r"^Application startup complete\.")),
    (Phase.HTTP, re.compile(r"Starting vLLM (?:API )?server\b")),
    (
        Phase.ENGINE_READY,
        re.compile(r"init engine \(profile, create kv cache, warmup model\) took (?P<init_engine_s>[\d.]+) ?s"),
    ),
    (Phase.GRAPHS, re.compile(r"Capturing CUDA graphs? ?(?:shapes)?.*?(?P<graph_percent>\d{1,3})%")),
    (Phase.GRAPHS, re.compile(r"Graph capturing finished in \d+ secs?, took (?P<graphs_gib>-?[\d.]+) GiB")),
    (
        Phase.KV_CACHE,
        re.compile(r"\bKV cache size: (?P<kv_tokens>[\d,]+) tokens(?:.*?: (?P<max_concurrency>[\d.]+)x)?"),
    ),
    (
        Phase.KV_CACHE,
        re.compile(r"^Maximum concurrency for [\d,]+ tokens per request: (?P<max_concurrency>[\d.]+)x"),
    ),
    (Phase.PROFILED, re.compile(r"^Available KV cache memory: (?P<kv_available_gib>-?[\d.]+) GiB")),
    (Phase.PROFILED, re.compile(r"^Explicitly set \((?P<kv_available_gib>[\d.]+)/[\d.]+\) GiB for KV cache")),
    (Phase.PROFILED, re.compile(r"^Memory profiling takes [\d.]+ seconds")),
    (Phase.COMPILING, re.compile(r"^torch\.compile (?:takes|took) (?P<compile_s>[\d.]+) s in total")),
    (
        Phase.COMPILING,
        re.compile(
            r"for vLLM's torch\.compile|^Dynamo bytecode transform time|^Compiling a graph for "
            r"|^Directly load "
        ),
    ),
    (
        Phase.LOADED,
        re.compile(
            r"^Model loading took (?P<model_loading_gib>[\d.]+) GiB(?: memory)? and"
            r" (?P<model_loading_s>[\d.]+) seconds"
        ),
    ),
    (Phase.LOADED, re.compile(r"^Loading model weights took (?P<model_loading_gib>[\d.]+) GB")),
    (Phase.LOADED, re.compile(r"^Loading weights took [\d.]+ seconds")),
    (Phase.LOADING, re.compile(r"^Loading \w+ checkpoint shards:\s+(?P<load_percent>\d{1,3})%")),
    (Phase.LOADING, re.compile(r"^Starting to load model |^Loading model from scratch")),
    (Phase.DISTRIBUTED, re.compile(r"^rank \d+ in world size \d+ is assigned|^vLLM is using nccl==")),
    (Phase.ENGINE, re.compile(r"^Initializing an? (?:V1 )?LLM engine \(v(?P<vllm_version>[^)\s]+)\)")),
    (Phase.CONFIG, re.compile(r"^Resolved architecture: (?P<architecture>\S+)")),
    (Phase.CONFIG, re.compile(r"^Using max model len (?P<max_model_len>\d+)")),
    (
        Phase.PROCESS,
        re.compile(r"^vLLM (?:API )?server version (?P<vllm_version>[^,\s]+)|^non-default args: |^args: Namespace\("),
    ),
    (Phase.PROCESS, re.compile(r"█.*\bversion (?P<vllm_version>\d\S*)\s*$")),
)
MAX_SEARCHED = 2048
_ADVICE = re.compile(r"--kv-cache-memory(?:-bytes)?=(?P<bytes>\d{1,20})\b")
_WHOLE = frozenset({"max_model_len", "load_percent", "graph_percent", "kv_tokens"})
_TEXT = frozenset({"vllm_version", "architecture"})


def advance(state: Progress, line: LogLine | str) -> Progress:
    """Return the state after one more line.

    Phases only go forward; figures of several workers keep the first (KV: the smallest).
    """
    parsed = parse_line(line) if isinstance(line, str) else line
    state = replace(state, lines=state.lines + 1)
    if parsed.level in ("ERROR", "CRITICAL"):
        return state
    message = parsed.message[:MAX_SEARCHED]
    advice = _ADVICE.search(parsed.message) if "Desired GPU memory utilization" in parsed.message else None
    if advice is not None:
        state = replace(state, suggested_kv_bytes=int(advice["bytes"]))
    # Once it serves, request texts can appear in the log (--enable-log-requests): nothing but a shutdown is
    # believed then.
    for phase, pattern in _MARKERS[:1] if state.listening else _MARKERS:
        match = pattern.search(message)
        if match is not None:
            return _apply(state, phase=phase, figures=match.groupdict())
    return state


def track(lines: Iterable[LogLine | str], *, state: Progress | None = None) -> Progress:
    """Fold many lines into a state."""
    state = state or Progress()
    for line in lines:
        state = advance(state, line)
    return state


def _apply(state: Progress, *, phase: Phase, figures: Mapping[str, str | None]) -> Progress:
    changes: dict[str, object] = {}
    for name, text in figures.items():
        value = None if text is None else _figure(name, text)
        if value is not None:
            changes[name] = _merge(name=name, before=getattr(state, name), now=value)
    if PHASE_ORDER.index(phase) > PHASE_ORDER.index(state.phase):
        changes["phase"] = phase
    if phase is Phase.LISTENING:
        changes["ready_line"] = state.ready_line or state.lines
        changes["listening"] = True
    if phase is Phase.ENDING:
        changes["listening"] = False
    return replace(state, **changes)  # type: ignore[arg-type]


def _figure(name: str, text: str) -> int | float | str | None:
    try:
        if name in _TEXT:
            return text[:64]
        return int(text.replace(",", "")[:18]) if name in _WHOLE else float(text[:18])
    except ValueError:
        return None


def _merge(*, name: str, before: float | str | None, now: float | str) -> int | float | str:
    """Several workers print the same figure.

    The smallest KV cache and the largest percentage describe the instance.
    """
    if before is None or isinstance(before, str) or isinstance(now, str):
        return now if before is None else before
    if name in ("kv_tokens", "kv_available_gib", "max_concurrency"):
        return min(before, now)
    return max(before, now)
