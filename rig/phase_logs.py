"""How long each phase of one recorded start took, by the words and the clock of its own log (vLLM 0.25.1, GPU).

A stamp of a log has whole seconds: a phase between two stamps is known to within one second. What the text
states (weights, compilation, graphs, the engine's whole start) is taken from there instead, in hundredths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from deployments.planning.log_lines import parse_line

# In the order in which a start passes through them.
PHASES = (
    "imports", "arguments", "engine", "distributed", "load", "dynamo", "graph", "compile", "profile", "kv_cache",
    "graphs", "warmup", "http",
)  # fmt: skip
# Lines that end a phase or begin the next one; the first line of the log is a mark as well.
MARKS: Mapping[str, re.Pattern[str]] = {
    "resolved": re.compile(r"^Resolved architecture: "),
    "configured": re.compile(r"^Using max model len "),
    "engine": re.compile(r"^Initializing a V1 LLM engine "),
    "loading": re.compile(r"^Loading model from scratch"),
    "kv_cache": re.compile(r"^GPU KV cache size: "),
    "graphs": re.compile(r"^Graph capturing finished in "),
    "initialised": re.compile(r"^init engine "),
    "serving": re.compile(r"^Starting vLLM server "),
}
# Seconds that the text of a line states.
STATED: Mapping[str, re.Pattern[str]] = {
    "load": re.compile(r"^Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    "dynamo": re.compile(r"^Dynamo bytecode transform time: ([\d.]+) s"),
    "graph": re.compile(
        r"^Compiling a graph for .* takes ([\d.]+) s|^Directly load the compiled graph.* from the cache, took ([\d.]+) s"
    ),
    "compile": re.compile(r"^torch\.compile took ([\d.]+) s in total"),
    "graphs": re.compile(r"^Graph capturing finished in (\d+) secs"),
    "init": re.compile(r"^init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What one log says: seconds of the marks since its first line, and the seconds stated."""

    marks: Mapping[str, float]
    stated: Mapping[str, float]


def read_recorded(lines: Iterable[str]) -> Recorded:
    """Read a whole log; the first of equal lines counts. ValueError where no line has a stamp."""
    first: datetime | None = None
    marks: dict[str, float] = {}
    stated: dict[str, float] = {}
    for text in lines:
        line = parse_line(text)
        if line.time is None:
            continue
        at = datetime.strptime(f"2000 {line.time}", "%Y %m-%d %H:%M:%S").astimezone()
        first = first or at
        for name, pattern in MARKS.items():
            if pattern.search(line.message):
                marks.setdefault(name, (at - first).total_seconds())
        for name, pattern in STATED.items():
            if match := pattern.search(line.message):
                stated.setdefault(name, float(next(group for group in match.groups() if group)))
    if first is None:
        raise ValueError("No line of the log has a stamp")
    return Recorded(marks=marks, stated=stated)


def measure_phases(recorded: Recorded) -> dict[str, float]:
    """Seconds of each phase but `imports`, which is over at the first line. KeyError where the start did not end.

    `profile` is what is left of the engine's own figure, so that the phases after the weights add up to it.
    """
    marks, stated = recorded.marks, recorded.stated
    found = {
        "arguments": marks["resolved"],
        "engine": marks["engine"] - marks["configured"],
        "distributed": marks["loading"] - marks["engine"],
        "load": stated["load"],
        "dynamo": stated["dynamo"],
        "graph": stated["graph"],
        "compile": stated["compile"] - stated["dynamo"] - stated["graph"],
        "kv_cache": max(0.0, marks["graphs"] - marks["kv_cache"] - stated["graphs"]),
        "graphs": stated["graphs"],
        "warmup": marks["initialised"] - marks["graphs"],
        "http": marks["serving"] - marks["initialised"],
    }
    rest = stated["compile"] + found["kv_cache"] + found["graphs"] + found["warmup"]
    found["profile"] = max(0.0, stated["init"] - rest)
    return {name: round(found[name], 3) for name in PHASES if name in found}
