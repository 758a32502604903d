"""Makes the simulator's times of a start from recorded logs: simulator/vllm/phase_times.json.

usage: python -m rig.phase_times [--check]

Three machines with one H200 and 16 cores each were recorded. The values are those of the first
(tests/planning/samples/h200), because only there the same start was seen alone and beside two others; what
its three starts at once took, divided by what one took alone, is the growth of a phase. The second machine's
logs (perf/results/starts_h200_logs.tar.gz) stand in the file to be compared with: it imports faster, and no
warm start was recorded alone on it, so it gives no growth. Single runs: six more warm starts alone on the first
machine compiled in 3.4 to 4.2 s (moments.json), so a growth is known to about a quarter. The logs named shape-*
are no starts alone, but four different models at one moment; script-* began five seconds apart.

Warmth of a start, as the logs tell them apart:
    cold     nothing was ever started on the host
    new      others were, but these flags were never compiled
    second   these flags came up once: compiled, but kernels are still made during the warm-up
    warm     they came up before more often
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rig.phase_logs import PHASES, Recorded, measure_phases, read_recorded

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "tests/planning/samples/h200"
ARCHIVE = ROOT / "perf/results/starts_h200_logs.tar.gz"
WRITTEN = ROOT / "simulator/vllm/phase_times.json"

CORES = 16  # nvidia-smi topo -m of the recorded machine: CPU affinity 0-15
TOGETHER = ("at-once-9089.log", "at-once-9090.log", "at-once-9091.log")
ALONE = {"cold": "start-cold.log", "new": "start-u50len8k.log", "warm": "start-u10.log"}
MOMENTS = "moments.json"
# The three at once were the second start of their flags. Their compilation was warm, but kernels were made in the
# warm-up, as in a start with new flags.
COMPARED_WITH = {"warmup": "new"}
ELSEWHERE_COLD = ("cold-0.log",)
ELSEWHERE_TOGETHER = tuple(f"pinned-{run}-{number}.log" for run in (1, 2, 3) for number in (0, 1, 2))

Phases = Mapping[str, float]


def read_samples() -> dict[str, Recorded]:
    """Logs of the first machine by name."""
    return {name: read_recorded(_lines((SAMPLES / name).read_bytes())) for name in (*ALONE.values(), *TOGETHER)}


def read_elsewhere() -> dict[str, Recorded]:
    """Logs of the second machine by name."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        for name in (*ELSEWHERE_COLD, *ELSEWHERE_TOGETHER):
            file = archive.extractfile(name)
            if file is None:
                raise FileNotFoundError(name)
            found[name] = read_recorded(_lines(file.read()))
    return found


def _lines(data: bytes) -> list[str]:
    """Lines of a log. A carriage return belongs to the bar of its line."""
    return data.decode("utf-8", "replace").split("\n")


def measure_imports(samples: Mapping[str, Recorded]) -> dict[str, float]:
    """Seconds from the start of the process to the first line of its log; keys: cold, warm, the logs at once.

    The clock outside saw the model answer; the log counts from its first line to its server. Of a warm start
    alone two gates tell: from one start to the next, less what a warm log took to the line that was the gate.
    """
    moments = json.loads((SAMPLES / MOMENTS).read_text("utf-8"))
    warm = samples[ALONE["warm"]].marks
    found = {
        "cold": moments["one_cold"]["ready"]["9089"] - samples[ALONE["cold"]].marks["serving"],
        "warm": mean(
            [
                _gap(moments["gate_init"]["starts"]) - warm["initialised"],
                _gap(moments["gate_kv"]["starts"]) - warm["kv_cache"],
            ]
        ),
    }
    for name in TOGETHER:
        port = name.removeprefix("at-once-").removesuffix(".log")
        found[name] = moments["at_once"]["ready_at"][port] - samples[name].marks["serving"]
    return found


def _gap(starts: Mapping[str, float]) -> float:
    """Seconds between the second start and the third: by then everything was warm."""
    return starts["9091"] - starts["9090"]


def make_times() -> dict[str, Any]:
    """Give the whole file. The same logs give the same file."""
    samples = read_samples()
    imports = measure_imports(samples)
    alone = {warmth: measure_phases(samples[name]) for warmth, name in ALONE.items()}
    for warmth, phases in alone.items():
        phases["imports"] = imports["cold" if warmth == "cold" else "warm"]
    together = {name: {**measure_phases(samples[name]), "imports": imports[name]} for name in TOGETHER}
    return {
        "what": "Made by python -m rig.phase_times from recorded logs of vLLM 0.25.1 on one H200; never edited. Seconds.",
        "cores": CORES,
        "instances": len(TOGETHER),
        "logs_in": str(SAMPLES.relative_to(ROOT)),
        "phases": {name: _describe(name, alone=alone, together=together) for name in PHASES},
        "elsewhere": _describe_elsewhere(),
    }


def _describe(name: str, *, alone: Mapping[str, Phases], together: Mapping[str, Phases]) -> dict[str, Any]:
    outside = [MOMENTS] if name == "imports" else []
    beside = _value([phases[name] for phases in together.values()], [*together, *outside])
    found = {warmth: _value([phases[name]], [ALONE[warmth], *outside]) for warmth, phases in alone.items()}
    found["second"] = beside if name in COMPARED_WITH else found["warm"]
    one = found[COMPARED_WITH.get(name, "warm")]["seconds"]
    return {"alone": found, "together": beside, "growth": measure_growth(alone=one, together=beside["seconds"])}


def measure_growth(*, alone: float, together: float) -> float:
    """How many times longer a phase took beside the others; 1 where it did not, or where nothing was to be seen.

    Below 1 is the scatter of single runs, not a start that others make faster.
    """
    return round(max(1.0, together / alone), 3) if alone > 0 else 1.0


def _value(seconds: Sequence[float], sources: Sequence[str]) -> dict[str, Any]:
    return {"seconds": round(mean(seconds), 3), "from": list(sources)}


def _describe_elsewhere() -> dict[str, Any]:
    logs = {name: measure_phases(recorded) for name, recorded in read_elsewhere().items()}

    def describe(names: Sequence[str]) -> dict[str, Any]:
        seconds = {phase: round(mean(logs[name][phase] for name in names), 3) for phase in PHASES[1:]}
        return {"seconds": seconds, "from": list(names)}

    return {
        "logs_in": str(ARCHIVE.relative_to(ROOT)),
        "alone_cold": describe(ELSEWHERE_COLD),
        "together_warm": describe(ELSEWHERE_TOGETHER),
    }


def write_text() -> str:
    return json.dumps(make_times(), indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="rig.phase_times")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file differs")
    options = parser.parse_args()
    text = write_text()
    if options.check:
        return int(text != WRITTEN.read_text("utf-8"))
    WRITTEN.write_text(text, "utf-8")
    sys.stdout.write(f"{WRITTEN.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
