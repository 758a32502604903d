"""The trial of accelerator_starts on a simulated H200: real SSH, planner and engine; memory and times by the simulator.

usage: python -m rig.simulated_starts --out DIR [--speed 2]

Three ways on one card: planned and pinned (cold, then warm), the script with five seconds between, all at one moment.
Then 24 instances on eight cards, planned and pinned (eight_cold, eight_pinned). Times are divided by the speed;
`overhead_s` is the time to all ready less the slowest single start, at speed 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from deployments.execution.start import Roots
from hosts.agent_archive import build_archive
from hosts.agent_session import AgentSession, open_session
from hosts.facts.model import HostFacts
from hosts.facts.parse import parse_facts
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits
from hosts.ssh.paramiko_runner import connect
from rig.accelerator_report import Report, write_json
from rig.accelerator_setting import Setting
from rig.accelerator_starts import CONTROLLER, Trial, script, start_planned
from simulator.fleet import Fleet, SimulatedHost, simulated_fleet
from simulator.spec import QWEN3, HostSpec

HOST = HostSpec(name="h200", gpus=("H200",), models=(QWEN3,), memory=512 << 30, cpus=16)
# Sixteen cores for each card, as the recorded machine has, and three instances on each, as were recorded.
EIGHT = HostSpec(name="h200-x8", gpus=("H200",) * 8, models=(QWEN3,), memory=2 << 40, cpus=8 * 16)
ON_EIGHT = 24


class SimulatedTrial(Trial):
    """A simulated host instead of this machine."""

    extra = {}

    def __init__(
        self, simulated: SimulatedHost, *, key: Path, out: Path, work: Path, report: Report, speed: float
    ) -> None:
        self.simulated, self.key, self.speed = simulated, key, speed
        setting = Setting(python="", write_model=(), arguments=(), env={}, expected=None)  # type: ignore[arg-type]
        super().__init__(out=out, work=work, report=report, setting=setting, version="0.25.1", gpu=True)
        described = simulated.describe()
        self.model = Path(simulated.model_path("Qwen3-0.6B"))
        self.roots = Roots(model=tuple(described["model_roots"]), vllm=tuple(described["vllm_roots"]))
        self.gap_s = 5.0 / speed

    def open(self) -> AgentSession:
        described = self.simulated.describe()
        kind, base64 = described["host_key"].split()[:2]
        endpoint = Endpoint(
            address=described["address"],
            port=described["port"],
            user=described["user"],
            host_key=HostKey(kind=kind, base64=base64),
            auth=KeyAuth(private_key_text=self.key.read_text()),
        )
        return open_session(connect(endpoint, limits=Limits()), archive=build_archive(), controller_id=CONTROLLER)

    def facts(self) -> HostFacts:
        roots = (
            {"model_roots": list(self.roots.model), "vllm_roots": list(self.roots.vllm)}
            if hasattr(self, "roots")
            else {}
        )
        facts = parse_facts(self.session.request("facts", roots, timeout=60))
        if not isinstance(facts, HostFacts):
            raise TypeError(facts)
        return facts


def sum_up(entry: dict[str, Any], *, speed: float) -> dict[str, Any]:
    told = {name: entry.get(name) for name in ("ready", "full_caches", "all_ready_s", "slowest_alone_s")}
    told["caches"] = [instance.get("kv_tokens") for instance in entry.get("instances", [])]
    if entry.get("all_ready_s") is not None:
        told["overhead_s"] = round((entry["all_ready_s"] - entry["slowest_alone_s"]) * speed, 2)
    return told


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--speed", type=float, default=2.0)
    options = parser.parse_args()
    found = compare(out=options.out, speed=options.speed)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if found["failed"] else 0


def compare(*, out: Path, speed: float, network: int = 99) -> dict[str, Any]:
    """Carry out the ways one after another; figures by way, and the names of those that broke off."""
    out.mkdir(parents=True, exist_ok=True)
    report = Report(out / "starts.json", limit_s=1500.0)
    found: dict[str, Any] = {"speed": speed}
    with simulated_fleet(out / "fleet", hosts=(HOST, EIGHT), speed=speed, network=network) as fleet:
        trial = open_trial(fleet, HOST, out=out, report=report)
        for label in ("cold", "pinned"):
            found[label] = plan_and_start(trial, label=label, count=3)
        for label, gap in (("script", trial.gap_s), ("together", 0.0)):
            with report.step(label) as entry:
                script(trial, entry, gap_s=gap, label=label)
            found[label] = sum_up(entry, speed=speed)
        trial.session.close()
        trial = open_trial(fleet, EIGHT, out=out, report=report)
        for label in ("eight_cold", "eight_pinned"):
            found[label] = plan_and_start(trial, label=label, count=ON_EIGHT)
        trial.session.close()
    found["failed"] = report.failed
    write_json(out / "summary.json", found)
    return found


def plan_and_start(trial: SimulatedTrial, *, label: str, count: int) -> dict[str, Any]:
    with trial.report.step(label) as entry:
        start_planned(trial, entry, label=label, count=count)
    side_by_side = entry["order"]["side_by_side"] if "order" in entry else None
    return {"side_by_side": side_by_side, **sum_up(entry, speed=trial.speed)}


def open_trial(fleet: Fleet, spec: HostSpec, *, out: Path, report: Report) -> SimulatedTrial:
    return SimulatedTrial(
        fleet[spec.name], key=fleet.private_key_path, out=out, work=out, report=report, speed=fleet.speed
    )


if __name__ == "__main__":
    sys.exit(main())
