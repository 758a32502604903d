"""Several real vLLM on one device: started by the real planner, engine and agent, and by the script of old.

usage: python3 -m rig.accelerator_starts --out DIR --site DIR [--parts cold,pinned,script,restart,shapes,unseen,later,batches]
       python3 -m rig.accelerator_starts --out DIR --cpu DIR  [--parts …]        the same under the CPU build
rig/simulated_starts.py does the same on a simulated H200.

    cold     three instances whose flags were never compiled here: one leads, two follow
    pinned   the same three again, three times
    script   a utilisation of 0.30 each and five seconds between the starts, as scripts on the net have it
    restart  the same three, then a restart in order: each stopped, its memory back, started in its place, answering
    shapes   one instance of each of several models with dummy weights, all at once: memory planned and measured
    unseen, later, batches    the same with other shapes, batches and sequences

Writes starts.json (after every step) and the raw log of every start to --out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.execution.engine import Engine
from deployments.execution.limits import Limits
from deployments.execution.start import Resume, Roots
from deployments.planning.build_restart import build_restart_plan
from deployments.planning.build_start import build_start_plan
from deployments.planning.build_stop import build_stop_plan
from deployments.planning.phases import Progress, advance
from deployments.planning.plan import HostRef, Plan, RevisionRef, RunningInstance, Taken
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from hosts.agent_archive import build_archive
from hosts.agent_session import AgentSession, open_session
from hosts.facts.model import HostFacts, VllmInstallation
from hosts.facts.parse import parse_facts
from rig.accelerator_report import Report, write_json
from rig.accelerator_setting import on_cpu, on_gpu
from rig.local_runner import LocalRunner
from rig.model_shapes import SHAPES

CONTROLLER = "starts-trial"
LIMITS = Limits(start=400.0, quiet=300.0)
# By part of the trial and name of the deployment: the shape and its wishes. The terms of memory were calibrated on the first;
# the others came later, each to check what the ones before it had taught.
SHAPES_STARTED: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "shapes": {
        "qwen3-0-6b": ("Qwen3-0.6B", {"max_num_seqs": 256}),
        "mistral-7b-v0-3": ("Mistral-7B-v0.3", {"max_num_seqs": 32}),
        "llama-3-1-8b": ("Llama-3.1-8B", {"max_num_seqs": 256}),
        "qwen3-32b": ("Qwen3-32B", {"max_num_seqs": 32}),
    },
    "unseen": {
        "qwen3-1-7b-small-batch": ("Qwen3-1.7B", {"max_num_seqs": 64, "batch": 2048}),
        "qwen3-4b": ("Qwen3-4B", {"max_num_seqs": 128}),
        "qwen3-8b-large-batch": ("Qwen3-8B", {"max_num_seqs": 16, "batch": 32_768}),
        "qwen3-14b": ("Qwen3-14B", {"max_num_seqs": 64}),
        "llama-3-1-8b-eager": ("Llama-3.1-8B", {"max_num_seqs": 32, "eager": True}),
        "mistral-7b-many": ("Mistral-7B-v0.3", {"max_num_seqs": 512, "batch": 16_384}),
    },
    "later": {
        "qwen3-0-6b-most": ("Qwen3-0.6B", {"max_num_seqs": 1024}),
        "qwen3-4b-largest-batch": ("Qwen3-4B", {"max_num_seqs": 8, "batch": 65_536}),
        "qwen3-8b-eager-small-batch": ("Qwen3-8B", {"max_num_seqs": 64, "batch": 2048, "eager": True}),
        "llama-3-1-8b-large-batch": ("Llama-3.1-8B", {"max_num_seqs": 128, "batch": 16_384}),
        "qwen3-14b-large-batch": ("Qwen3-14B", {"max_num_seqs": 32, "batch": 32_768}),
        "mistral-7b-eager-large-batch": ("Mistral-7B-v0.3", {"max_num_seqs": 16, "batch": 16_384, "eager": True}),
    },
    "batches": {
        "qwen3-8b-16-of-32k": ("Qwen3-8B", {"max_num_seqs": 16, "batch": 32_768}),
        "qwen3-8b-32-of-32k": ("Qwen3-8B", {"max_num_seqs": 32, "batch": 32_768}),
        "qwen3-8b-16-of-16k": ("Qwen3-8B", {"max_num_seqs": 16, "batch": 16_384}),
        "qwen3-4b-16-of-32k": ("Qwen3-4B", {"max_num_seqs": 16, "batch": 32_768}),
        "llama-3-1-8b-16-of-32k": ("Llama-3.1-8B", {"max_num_seqs": 16, "batch": 32_768}),
        "mistral-7b-512-of-8k": ("Mistral-7B-v0.3", {"max_num_seqs": 512, "batch": 8192}),
    },
}


class Notes:
    """A listener that keeps moments and logs in memory."""

    # The names of the arguments are the engine's.
    # ruff: noqa: ARG002

    def __init__(self, report: Report) -> None:
        self.report = report
        self.began = time.monotonic()
        self.launches: dict[str, dict[str, Any]] = {}

    def of(self, launch_id: str) -> dict[str, Any]:
        return self.launches.setdefault(launch_id, {"phases": {}, "log": []})

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 2)

    def launching(self, launch_id: str) -> None:
        self.of(launch_id)["asked"] = self.seconds()

    def launched(self, launch_id: str, started: Any) -> None:
        self.of(launch_id)["started"] = dict(started)

    def log(self, launch_id: str, *, offset: int, next_offset: int, text: str) -> None:
        self.of(launch_id)["log"].append(text)

    def progress(self, launch_id: str, progress: Progress, *, offset: int) -> None:
        notes = self.of(launch_id)
        notes["phases"].setdefault(progress.phase.value, self.seconds())
        notes["kv_tokens"], notes["init_engine_s"] = progress.kv_tokens, progress.init_engine_s
        notes["weights_gib"], notes["graphs_gib"] = progress.model_loading_gib, progress.graphs_gib
        notes["compile_s"] = progress.compile_s

    def phase_seen(self, launch_id: str, progress: Progress) -> None:
        self.of(launch_id)["phases"].setdefault(progress.phase.value, self.seconds())

    def verifying(self, launch_id: str) -> None:
        pass

    def verified(self, launch_id: str, verdict: Any, probe: Any, status: Any) -> None:
        notes = self.of(launch_id)
        notes["verdict"], notes["sentence"], notes["ready"] = verdict.code, verdict.sentence, self.seconds()
        notes["held"] = sum(
            size or 0 for process in status["processes"] for size in (process.get("device_memory") or {}).values()
        )

    def failed(self, launch_id: str, cause: Any, status: Any) -> None:
        self.of(launch_id)["failed"] = {"code": str(cause.code), "sentence": cause.sentence, "at": self.seconds()}

    def devices_seen(self, devices: Any) -> None:
        pass

    def stopping(self, launch_id: str) -> None:
        pass

    def stopped(self, launch_id: str, report: Any) -> None:
        self.of(launch_id)["stopped"] = self.seconds()

    def cancelled(self) -> bool:
        return self.report.left_s < 20

    def hurried(self) -> bool:
        return self.cancelled()


class Trial:
    """The machine itself as a host: its facts with the vLLM of the folder, a session, plans carried out."""

    gap_s = 5.0  # between two starts of the script
    extra: Mapping[str, Any] = {"--load-format": "dummy"}

    def __init__(self, *, out: Path, work: Path, report: Report, setting: Any, version: str, gpu: bool) -> None:
        self.out, self.work, self.report, self.setting, self.gpu = out, work, report, setting, gpu
        self.version = version
        self.model = work / "model"
        self.roots = Roots(model=(str(work),), vllm=("/",))
        if not gpu:
            self.extra = {"--enforce-eager": True}
        self.session = self.open()
        self.attempt = 0
        self.compiled: Any = set()

    def open(self) -> AgentSession:
        return open_session(
            LocalRunner(), archive=build_archive(), controller_id=CONTROLLER, state_root=str(self.work / "state")
        )

    def facts(self) -> HostFacts:
        facts = parse_facts(
            self.session.request("facts", {"model_roots": [str(self.work)], "vllm_roots": []}, timeout=60)
        )
        if not isinstance(facts, HostFacts):
            raise TypeError(facts)
        found = VllmInstallation(python=self.setting.python, executable=None, version=self.version, kind="venv")
        return replace(facts, vllm=(found,))

    def spec(self, *, name: str, model: Path, instances: int, **wishes: Any) -> DeploymentSpec:
        env = {name: value for name, value in self.setting.env.items() if name != "HF_HUB_OFFLINE"}
        spec = parse_spec(
            {
                "name": name, "host": "here", "model": str(model), "served_model_name": name, "instances": instances,
                "max_model_len": 2048 if self.gpu else 512, "max_num_seqs": 32, "env": env, "extra_args": dict(self.extra), **wishes,
            }
        )  # fmt: skip
        if not isinstance(spec, DeploymentSpec):
            raise TypeError(spec)
        return spec

    def plan(self, **wishes: Any) -> Plan:
        spec = self.spec(**wishes)
        facts = self.facts()
        plan = build_start_plan(
            spec=spec,
            revision=revision_of(spec.name),
            host=self.host(facts),
            facts=facts,
            facts_age_s=0,
            taken=Taken(compiled=self.compiled),
            ids=lambda: str(uuid.uuid4()),
            allow_code_loading=True,
        )
        if not isinstance(plan, Plan):
            raise TypeError(plan)
        return plan

    def plan_restart(self, plan: Plan, *, spec: Any) -> Plan:
        """The replacement of everything that this plan started, one at a time."""
        facts = self.facts()
        running = tuple(running_instance(launch) for launch in plan.launches)
        reserved: dict[str, int] = {}
        for instance in running:
            for uuid_, size in instance.reserved.items():
                reserved[uuid_] = reserved.get(uuid_, 0) + size
        made = build_restart_plan(
            spec=spec,
            revision=revision_of(spec.name),
            host=self.host(facts),
            facts=facts,
            facts_age_s=0,
            taken=Taken(
                compiled=self.compiled,
                instances=running,
                reserved=reserved,
                ports=frozenset(instance.port for instance in running),
            ),
            targets=running,
            at_a_time=1,
            ids=lambda: str(uuid.uuid4()),
            allow_code_loading=True,
        )
        if not isinstance(made, Plan):
            raise TypeError(made)
        return made

    def host(self, facts: HostFacts) -> HostRef:
        return HostRef(
            id=1,
            name="here",
            machine_id=facts.machine_id,
            host_key_fingerprint="-",
            model_roots=self.roots.model,
            vllm_roots=self.roots.vllm,
        )

    def carry_out(self, plan: Plan) -> Notes:
        notes = Notes(self.report)
        self.attempt += 1
        outcome = Engine(
            session=self.session,
            intent=json.loads(plan.bytes),
            # The facts of a session do not know a vLLM that lies on a path of its own.
            preconditions=[vars(row) for row in plan.preconditions if row.code != "vllm_version"],
            fence={"controller": CONTROLLER, "run": "trial", "attempt": self.attempt},
            listener=notes,
            clock=time,
            limits=LIMITS,
            facts_age_s=0,
            roots=self.roots,
            secrets_of=lambda _launch: {},
            resume_of=lambda _launch_id: Resume(),
        ).run()
        self.report.say(f"   {outcome}")
        return notes

    def stop(self, plan: Plan) -> None:
        targets = [running_instance(launch) for launch in plan.launches]
        stop = build_stop_plan(
            deployment_id="trial",
            deployment_name="trial",
            host=self.host(self.facts()),
            targets=targets,
            reason="trial",
        )
        if isinstance(stop, Plan):
            self.carry_out(stop)

    def keep(self, plan: Plan, notes: Notes, *, label: str) -> dict[str, Any]:
        """Figures of one start of a plan; raw logs to files."""
        rows = []
        for launch in plan.launches:
            seen = notes.of(launch["launch_id"])
            (self.out / f"{label}-{launch['instance']['name']}.log").write_text("".join(seen.pop("log")), "utf-8")
            rows.append(
                {
                    "instance": launch["instance"]["name"],
                    "planned_tokens": launch["expected"]["kv_tokens"],
                    "planned": launch["memory"],
                    **{name: value for name, value in seen.items() if name != "started"},
                }
            )
        alone = [row["ready"] - row["asked"] for row in rows if "ready" in row]
        ready = [row["ready"] for row in rows if "ready" in row]
        return {
            "order": plan.intent["order"],
            "instances": rows,
            "ready": len(ready),
            "all_ready_s": max(ready, default=None),
            "slowest_alone_s": round(max(alone, default=0.0), 2),
            "full_caches": sum(row.get("kv_tokens") == row["planned_tokens"] for row in rows),
        }


def running_instance(launch: Mapping[str, Any]) -> RunningInstance:
    """A launch of a plan that was carried out, as the ledgers would know it."""
    return RunningInstance(
        launch_id=launch["launch_id"],
        instance=launch["instance"]["name"],
        slot=launch["instance"]["slot"],
        slot_key=launch["slot_key"],
        devices=tuple(launch["devices"]),
        port=launch["port"],
        reserved=launch["reserved_bytes"],
    )


def revision_of(name: str) -> RevisionRef:
    return RevisionRef(id=1, number=1, digest="0" * 64, deployment_id=name, deployment_name=name)


def restart(trial: Trial, entry: dict[str, Any]) -> None:
    """Three serve; each is replaced in its turn, on its port and its bytes."""
    wishes: dict[str, Any] = {"name": "trial", "model": trial.model, "instances": 3 if trial.gpu else 2}
    wishes |= {} if trial.gpu else {"kv_cache_memory_bytes": "64MiB"}
    first = trial.plan(**wishes)
    trial.keep(first, trial.carry_out(first), label="before-restart")
    plan = trial.plan_restart(first, spec=trial.spec(**wishes))
    entry["ports_stay"] = [one["port"] for one in plan.launches] == [one["port"] for one in first.launches]
    notes = trial.carry_out(plan)
    stopped = [notes.of(launch["launch_id"]).get("stopped") for launch in first.launches]
    entry.update(trial.keep(plan, notes, label="restart"), stopped=stopped)
    ready = [row.get("ready") for row in entry["instances"]]
    entry["in_order"] = None not in ready and all(a < b for a, b in zip(ready, stopped[1:], strict=False))
    trial.stop(plan)


def start_planned(trial: Trial, entry: dict[str, Any], *, label: str, count: int) -> None:
    """As many as `count` by one plan, which pins their caches; stopped when their figures are in `entry`."""
    wishes = {} if trial.gpu else {"kv_cache_memory_bytes": "64MiB"}
    plan = trial.plan(name="trial", model=trial.model, instances=count, **wishes)
    notes = trial.carry_out(plan)
    entry.update(trial.keep(plan, notes, label=label))
    if entry["ready"] == count:
        trial.compiled |= {launch["compile_key"] for launch in plan.launches}
    trial.stop(plan)


def script(trial: Trial, entry: dict[str, Any], *, gap_s: float, label: str = "script") -> None:
    """Three starts, some seconds apart, each told to take 0.30 of the device; nobody waits for anybody."""
    plan = trial.plan(name="script", model=trial.model, instances=3 if trial.gpu else 2,
                      gpu_memory_utilization="0.30")  # fmt: skip
    notes = Notes(trial.report)
    trial.attempt += 1
    threads = []
    for number, launch in enumerate(plan.launches):
        argv = without(launch["argv"], "--kv-cache-memory-bytes")
        args = {
            "launch_id": launch["launch_id"], "instance": launch["instance"]["name"], "slot": launch["slot_key"],
            "argv": argv, "env": launch["env"], "address": launch["address"], "port": launch["port"],
            "devices": launch["devices"], "model_path": launch["model_path"], "min_free_disk": 1 << 28,
        }  # fmt: skip
        if number:
            time.sleep(gap_s)
        notes.launching(launch["launch_id"])
        fence = {"controller": CONTROLLER, "run": "trial", "attempt": trial.attempt}
        trial.session.request("launch", args, fence=fence, timeout=60)
        thread = threading.Thread(target=follow, args=(trial, notes, launch["launch_id"]), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(1.0, trial.report.left_s - 20))
    entry.update(trial.keep(plan, notes, label=label))
    trial.stop(plan)


def without(argv: list[str], flag: str) -> list[str]:
    at = argv.index(flag) if flag in argv else len(argv)
    return argv[:at] + argv[at + 2 :]


def follow(trial: Trial, notes: Notes, launch_id: str) -> None:
    progress = Progress()
    with trial.session.stream("tail", {"launch_id": launch_id, "offset": 0, "follow": True}) as stream:
        for event in stream.ticks(1.0):
            for line in (event or {}).get("text", "").splitlines(keepends=True):
                notes.log(launch_id, offset=0, next_offset=0, text=line)
                progress = advance(progress, line.rstrip("\n"))
                notes.progress(launch_id, progress, offset=0)
            if progress.listening or notes.cancelled():
                break
    view = trial.session.request("status", {"launch_id": launch_id}, timeout=30)
    if progress.listening and view["state"] == "running":
        notes.of(launch_id)["ready"] = notes.seconds()
    else:
        notes.of(launch_id)["failed"] = {"state": view["state"], "at": notes.seconds()}


def shapes(trial: Trial, entry: dict[str, Any], *, started: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """One instance of each shape, all at once, with two GiB of cache: what each really holds."""
    plans = {}
    for number, (name, (shape, wishes)) in enumerate(started.items()):
        folder = trial.work / shape
        shutil.copytree(trial.work / "model", folder, dirs_exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SHAPES[shape]), "utf-8")
        extra = dict(trial.extra)
        extra |= {"--max-num-batched-tokens": wishes["batch"]} if "batch" in wishes else {}
        extra |= {"--enforce-eager": True} if wishes.get("eager") else {}
        plans[name] = trial.plan(
            name=name,
            model=folder,
            instances=1,
            port=8300 + number,
            kv_cache_memory_bytes="2GiB",
            max_num_seqs=wishes["max_num_seqs"],
            extra_args=extra,
        )
    results: dict[str, Notes] = {}
    threads = [
        threading.Thread(target=lambda name=name, plan=plan: results.update({name: trial.carry_out(plan)}), daemon=True)
        for name, plan in plans.items()
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join(max(1.0, trial.report.left_s - 15))
    for name, plan in plans.items():
        if name in results:
            entry[name] = trial.keep(plan, results[name], label=name)
    for plan in plans.values():
        trial.stop(plan)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site")
    parser.add_argument("--cpu", type=Path)
    parser.add_argument("--version", default="0.25.1")
    parser.add_argument("--parts", default="cold,pinned,script,shapes")
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--limit-s", type=float, default=540.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.work or Path(tempfile.mkdtemp(prefix="starts-"))
    work.mkdir(parents=True, exist_ok=True)
    report = Report(options.out / "starts.json", limit_s=options.limit_s)
    model = work / "model"
    setting = on_cpu(folder=options.cpu, model=model) if options.cpu else on_gpu(site=options.site, model=model)
    if not model.exists():
        subprocess.run(setting.write_model, check=True, timeout=120)
    version = "0.32.0" if options.cpu else options.version
    trial = Trial(out=options.out, work=work, report=report, setting=setting, version=version, gpu=not options.cpu)
    parts, count = options.parts.split(","), 3 if trial.gpu else 2
    if "cold" in parts:
        with report.step("three, never compiled here") as entry:
            start_planned(trial, entry, label="cold", count=count)
    if "pinned" in parts:
        if "cold" not in parts:
            trial.compiled = _Everything()
        for number in range(3):
            with report.step(f"three pinned, run {number + 1}") as entry:
                start_planned(trial, entry, label=f"pinned{number + 1}", count=count)
        seconds = [step["all_ready_s"] for step in report.steps if "pinned" in step["name"] and step.get("all_ready_s")]
        report.figures["pinned_median_s"] = statistics.median(seconds) if seconds else None
    if "script" in parts:
        with report.step("the script of old") as entry:
            script(trial, entry, gap_s=trial.gap_s)
    if "restart" in parts:
        trial.compiled = trial.compiled or _Everything()
        with report.step("a restart in order") as entry:
            restart(trial, entry)
    for part, started in SHAPES_STARTED.items():
        if part in parts:
            with report.step(part) as entry:
                shapes(trial, entry, started=started)
    write_json(options.out / "summary.json", {"failed": report.failed, **report.figures})
    trial.session.close()
    return 1 if report.failed else 0


class _Everything(set):  # type: ignore[type-arg]
    """For a run that goes on after another one: all was compiled before."""

    def __contains__(self, _key: object) -> bool:
        return True


if __name__ == "__main__":
    sys.exit(main())
