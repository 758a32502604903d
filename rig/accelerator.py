"""One real vLLM launched, adopted, stopped, orphaned and swept by the real agent on this machine.

usage: python3 -m rig.accelerator --out DIR --site DIR       on a machine with a GPU, vLLM in a folder
       python3 -m rig.accelerator --out DIR --cpu DIR        the same steps under the CPU build, no GPU

Writes to --out: accelerator.json (steps, seconds, figures; after every step), nvml.json and gpu_facts.json
(NVML's answers on the idle machine and what the agent made of them), nvml-serving.json and
gpu_facts-serving.json (the same while vLLM serves), facts.json, vllm.log. Exit status 1 when a step was not as
it should be; the later ones are tried all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.planning.phases import Progress, advance
from deployments.planning.readiness import Ready, judge_readiness
from hosts.agent import devices
from hosts.agent.linux import LinuxSystem
from hosts.agent_archive import build_archive
from hosts.agent_session import AgentRefused, AgentSession, open_session
from hosts.facts.parse import parse_facts
from hosts.ssh.errors import SshError
from rig.accelerator_report import NotAsItShouldBeError, Report, require, write_json
from rig.accelerator_setting import ADDRESS, SERVED_NAME, Setting, on_cpu, on_gpu
from rig.local_runner import LocalRunner
from rig.nvml_recording import record_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONTROLLER = "accelerator-trial"
INSTANCE, SLOT, PORT = "trial-1", "trial-slot-1", 8137
MEMORY_SLACK = 64 << 20
ENGINE_HOLDS_AT_LEAST = 30 << 30  # of the 40 GiB of KV cache alone
FIRST_START_S, NEXT_START_S = 330.0, 150.0
RESERVE_S = 25.0  # kept back for stopping what was started
LOG_KEPT = 12 << 20


class Trial:
    """The state between the steps: the session, the launches made, and the memory level before them."""

    def __init__(self, *, out: Path, work: Path, report: Report, setting: Setting, gpu: bool) -> None:
        self.out, self.work, self.report, self.setting, self.gpu = out, work, report, setting, gpu
        self.model = work / "model"
        self.system = LinuxSystem()
        self.runner = LocalRunner()
        self.state_root = str(work / "state")
        self.session: AgentSession | None = None
        self.launches: list[dict[str, Any]] = []
        self.attempt = 0
        self.memory_before: int | None = None
        self.progress = Progress()

    def ask(self, verb: str, args: dict[str, Any] | None = None, *, timeout: float = 60.0) -> dict[str, Any]:
        if self.session is None:
            raise NotAsItShouldBeError("there is no session with an agent")
        return self.session.request(verb, args or {}, fence=self.fence(), timeout=timeout)

    def fence(self) -> dict[str, Any]:
        return {"controller": CONTROLLER, "run": "trial", "attempt": self.attempt}

    def open(self) -> AgentSession:
        self.session = open_session(
            self.runner, archive=build_archive(), controller_id=CONTROLLER, state_root=self.state_root
        )
        return self.session

    def memory_used(self) -> int | None:
        """Bytes that processes hold on all devices, None where no device says."""
        known = [use.used for use in devices.read_use() if use.used is not None]
        return sum(known) if known else None

    def view(self, launch_id: str) -> dict[str, Any]:
        return self.ask("status", {"launch_id": launch_id})

    def processes_of(self, launch_id: str) -> list[str]:
        """Titles of what carries the launch's marker, read without the agent."""
        found = self.system.processes()
        return [process.title for process in found if process.marker == launch_id and not process.gone]

    @property
    def last(self) -> dict[str, Any]:
        """The newest launch; raises where none was made."""
        require(self.launches, "nothing was launched")
        return self.launches[-1]


def record_nvml(trial: Trial, *, suffix: str, entry: dict[str, Any]) -> dict[str, Any]:
    when = "while one vLLM serves" if suffix else "idle"
    origin = f"recorded from {_platform_words()}, {when}"
    recording, found = record_devices(origin=origin)
    write_json(trial.out / f"nvml{suffix}.json", recording)
    write_json(trial.out / f"gpu_facts{suffix}.json", found)
    entry["calls"] = len(recording["calls"])
    entry["source"] = found["gpus"]["source"]
    entry["devices"] = [f"{use['uuid']} used {use['used']}" for use in found["devices"]]
    require(not trial.gpu or found["gpus"]["source"] == "nvml", f"NVML did not answer: {found['gpus']}")
    return found


def _platform_words() -> str:
    gpus = devices.read_facts()
    names = sorted({str(device["name"]) for device in gpus.get("devices", [])})
    return f"{', '.join(names) or 'a machine without a GPU'}, driver {gpus.get('driver')}"


def read_facts(trial: Trial, gpus: dict[str, Any], entry: dict[str, Any]) -> None:
    session = trial.open()
    entry["python"], entry["agent"] = session.hello["python"], session.hello["agent"]
    began = time.monotonic()
    body = trial.ask("facts", {"model_roots": [str(trial.work)], "vllm_roots": []})
    entry["facts_s"] = round(time.monotonic() - began, 3)
    write_json(trial.out / "facts.json", body)
    entry["vllm"], entry["filesystem"] = body["vllm"], [disk["filesystem"] for disk in body["disks"]]
    require(_stable(body["gpus"]) == _stable(gpus), "the zipapp's GPU facts differ from those read in-process")
    require([model["path"] for model in body["models"]] == [str(trial.model)], f"models: {body['models']}")
    parsed = parse_facts(body)
    require(hasattr(parsed, "gpu_source"), f"the facts cannot be read: {parsed}")
    require(body["state_root"]["refusal"] is None, f"state root: {body['state_root']}")


def _stable(gpus: dict[str, Any]) -> list[Any]:
    """Everything but the reading that changes by itself. For the CPU, the source alone."""
    found = [{**device, "memory_used": None} for device in gpus.get("devices", [])]
    return [gpus["source"], found]


def launch(trial: Trial, entry: dict[str, Any]) -> None:
    trial.attempt += 1
    args = {
        "launch_id": str(uuid.uuid4()),
        "instance": INSTANCE,
        "slot": SLOT,
        "argv": trial.setting.argv(model=trial.model, port=PORT),
        "env": {**trial.setting.env, **_visible_devices(trial)},
        "address": ADDRESS,
        "port": PORT,
        "devices": [use.uuid for use in devices.read_use()],
        "model_path": str(trial.model),
        "min_free_disk": 1 << 30,
    }
    started = trial.ask("launch", args)
    trial.launches.append({"args": args, "started": started, "at": time.monotonic()})
    entry.update({name: started[name] for name in ("pid", "sid", "state", "adopted")})
    require(started["adopted"] is False, "a new launch must not be adopted")


def _visible_devices(trial: Trial) -> dict[str, str]:
    uuids = [use.uuid for use in devices.read_use()]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if trial.gpu else {}


def follow_start(trial: Trial, entry: dict[str, Any], *, within_s: float) -> None:
    """Read the log through the agent until vLLM listens; `entry` gets each phase's seconds since the launch."""
    until = time.monotonic() + min(within_s, trial.report.left_s - RESERVE_S)
    launched_at, phases = trial.last["at"], {}
    entry["phases"], trial.progress = phases, Progress()
    tail = {"launch_id": trial.last["args"]["launch_id"], "offset": 0, "follow": True}
    require(trial.session, "there is no session with an agent")
    with trial.session.stream("tail", tail) as stream:  # type: ignore[union-attr]
        for event in stream.ticks(1.0):
            for line in (event or {}).get("text", "").splitlines():
                trial.progress = advance(trial.progress, line)
                if trial.progress.phase not in phases:
                    phases[trial.progress.phase] = round(time.monotonic() - launched_at, 2)
                    trial.report.say(f"   {phases[trial.progress.phase]:7.2f} s  {trial.progress.label}")
            if trial.progress.listening:
                break
            require(time.monotonic() < until, f"not listening in time, last: {trial.progress.label}")
    entry["figures"] = _figures(trial.progress)
    require(trial.progress.listening, f"the log ended at: {trial.progress.label}\n{_log_end(trial)}")


def _figures(progress: Progress) -> dict[str, Any]:
    names = ("vllm_version", "model_loading_gib", "compile_s", "kv_available_gib", "kv_tokens", "graphs_gib")
    return {name: getattr(progress, name) for name in (*names, "init_engine_s", "suggested_kv_bytes")}


def _log_end(trial: Trial) -> str:
    text = Path(trial.last["started"]["log_path"]).read_text("utf-8", "replace")
    return "\n".join(text.splitlines()[-30:])


def verify(trial: Trial, entry: dict[str, Any]) -> None:
    args = {"address": ADDRESS, "port": PORT, "served_name": SERVED_NAME, "task": "generate", "deadline_s": 30}
    probe = trial.ask("probe", args)
    alive = trial.view(trial.last["args"]["launch_id"])["state"] == "running"
    verdict = judge_readiness(
        probe=probe, expected=trial.setting.expected, progress=trial.progress, process_alive=alive
    )
    cache = probe.get("cache_config") or {}
    entry.update(verdict=verdict.code, sentence=verdict.sentence, ms=probe["answer"]["ms"])
    entry["version"], entry["tokens"] = probe["version"], probe["answer"]["tokens"]
    entry["cache"] = {name: cache.get(name) for name in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")}
    require(isinstance(verdict, Ready), f"{verdict.code}: {verdict.sentence}")


def observe(trial: Trial, entry: dict[str, Any]) -> None:
    body = trial.ask("observe")
    (view,) = [one for one in body["launches"] if one["launch_id"] == trial.last["args"]["launch_id"]]
    entry["state"], entry["processes"] = view["state"], [_short(process) for process in view["processes"]]
    entry["foreign"], entry["devices"] = [_short(process) for process in body["foreign"]], body["devices"]
    require(view["state"] == "running", f"state {view['state']}")
    _require_engine_memory(trial, view["processes"])


def _short(process: dict[str, Any]) -> dict[str, Any]:
    return {name: process[name] for name in ("pid", "ppid", "role", "title", "rss", "device_memory")}


def _require_engine_memory(trial: Trial, processes: Sequence[dict[str, Any]]) -> int | None:
    """Bytes EngineCore holds on devices, None without a GPU."""
    engines = [process for process in processes if process["role"] == "engine_core"]
    require(len(engines) == 1, f"roles: {[process['role'] for process in processes]}")
    held = sum(used or 0 for used in engines[0]["device_memory"].values())
    require(not trial.gpu or held >= ENGINE_HOLDS_AT_LEAST, f"EngineCore holds {held} bytes by NVML")
    return held if trial.gpu else None


def adopt(trial: Trial, entry: dict[str, Any]) -> None:
    """Kill the agent, open another one, ask for the same launch again."""
    first, pid = trial.session, trial.last["started"]["pid"]
    require(first, "there is no session with an agent")
    os.kill(first.hello["pid"], signal.SIGKILL)  # type: ignore[union-attr]
    entry["loss_noticed_s"] = _wait(lambda: not first.alive, seconds=10, what="the dead agent is not noticed")  # type: ignore[union-attr]
    first.close()  # type: ignore[union-attr]
    began = time.monotonic()
    trial.open()
    entry["reopened_s"] = round(time.monotonic() - began, 3)
    trial.attempt += 1
    again = trial.ask("launch", trial.last["args"])
    entry.update(adopted=again["adopted"], pid=again["pid"], before=pid)
    require((again["adopted"], again["pid"]) == (True, pid), f"not adopted: {again}")


def stop(trial: Trial, entry: dict[str, Any]) -> None:
    launch_id = trial.last["args"]["launch_id"]
    args = {"launch_id": launch_id, "grace_s": 20, "second_term_s": 8, "reason": "end of the trial"}
    require(trial.session, "there is no session with an agent")
    began = time.monotonic()
    with trial.session.stream("stop", args, fence=trial.fence(), idle_timeout=60) as stream:  # type: ignore[union-attr]
        entry["steps"] = [f"{event['step']} {event['pids']}" for event in stream]
        result = stream.result or {}
    entry["stopped_s"] = round(time.monotonic() - began, 3)
    entry["result"] = {name: result.get(name) for name in ("exit_code", "signals", "survivors", "shm_removed")}
    require(result.get("survivors") == [], f"survivors: {result}")
    require_nothing_left(trial, entry, since=began)
    require(trial.view(launch_id)["closed"], "the launch is not closed")


def require_nothing_left(trial: Trial, entry: dict[str, Any], *, since: float) -> None:
    """No process with the marker, the memory back to its level. `entry` gets seconds since `since`."""
    left = trial.processes_of(trial.last["args"]["launch_id"])
    require(not left, f"processes left: {left}")
    with contextlib.suppress(NotAsItShouldBeError):
        _wait(lambda: _memory_is_back(trial), seconds=20, what="")
    entry["memory_before"], entry["memory_after"] = trial.memory_before, trial.memory_used()
    entry["memory_back_s"] = round(time.monotonic() - since, 3) if trial.gpu else None
    require(_memory_is_back(trial), f"{trial.memory_used()} bytes are held, {trial.memory_before} were before")
    shm = sorted(path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_", "vllm_dist_")))  # noqa: S108
    entry["shm_left"] = shm


def _memory_is_back(trial: Trial) -> bool:
    now = trial.memory_used()
    if trial.memory_before is None:
        return not trial.gpu
    return now is not None and now <= trial.memory_before + MEMORY_SLACK


def orphan(trial: Trial, entry: dict[str, Any]) -> None:
    """SIGKILL to the API server: what is left must be seen as orphaned, with its device memory."""
    launch_id = trial.last["args"]["launch_id"]
    os.kill(trial.last["started"]["pid"], signal.SIGKILL)
    entry["seen_s"] = _wait(lambda: trial.view(launch_id)["state"] == "orphaned", seconds=15, what="not orphaned")
    time.sleep(3.0)  # what ends by itself has ended then (EngineCore does not: measured, 0.25.1 and 0.32.0)
    (view,) = [one for one in trial.ask("observe")["launches"] if one["launch_id"] == launch_id]
    entry["state"], entry["processes"] = view["state"], [_short(process) for process in view["processes"]]
    entry["engine_core_holds"] = _require_engine_memory(trial, view["processes"])
    require(view["state"] == "orphaned", f"state {view['state']}")


def sweep(trial: Trial, entry: dict[str, Any]) -> None:
    launch_id = trial.last["args"]["launch_id"]
    preview = trial.ask("sweep", {"preview": True})["orphans"]
    entry["preview"] = [{name: one[name] for name in ("launch_id", "instance", "device_memory")} for one in preview]
    require([one["launch_id"] for one in preview] == [launch_id], f"orphans: {preview}")
    held = preview[0]["device_memory"]
    require(not trial.gpu or (held or 0) >= ENGINE_HOLDS_AT_LEAST, f"the preview says {held} bytes")
    require(trial.processes_of(launch_id), "a preview must kill nothing")
    began = time.monotonic()
    done = trial.ask("sweep", {"preview": False, "launches": [launch_id]})
    entry["swept_s"] = round(time.monotonic() - began, 3)
    entry["swept"], entry["refused"] = done["swept"], done["refused"]
    require([one["launch_id"] for one in done["swept"]] == [launch_id], f"not swept: {done}")
    require_nothing_left(trial, entry, since=began)


def _wait(condition: Callable[[], bool], *, seconds: float, what: str) -> float:
    began = time.monotonic()
    while not condition():
        require(time.monotonic() - began < seconds, f"{what} within {seconds:g} s")
        time.sleep(0.05)
    return round(time.monotonic() - began, 3)


def perform(trial: Trial) -> None:
    """All steps in order. A step whose ground is missing fails by its first `require`."""
    report = trial.report
    gpus: dict[str, Any] = {}
    with report.step("write the model") as entry:
        subprocess.run(trial.setting.write_model, check=True, timeout=60)
        entry["files"] = sorted(path.name for path in trial.model.iterdir())
    with report.step("record NVML, idle") as entry:
        gpus = record_nvml(trial, suffix="", entry=entry)["gpus"]
        trial.memory_before = trial.memory_used()
    with report.step("open a session and read facts") as entry:
        read_facts(trial, gpus, entry)
    start(trial, name="first", within_s=FIRST_START_S)
    with report.step("record NVML, serving") as entry:
        record_nvml(trial, suffix="-serving", entry=entry)
    with report.step("kill the agent, adopt by a second one") as entry:
        adopt(trial, entry)
    with report.step("still ready after the adoption") as entry:
        verify(trial, entry)
    with report.step("stop") as entry:
        stop(trial, entry)
    start(trial, name="second", within_s=NEXT_START_S)
    with report.step("kill the API server") as entry:
        orphan(trial, entry)
    with report.step("sweep") as entry:
        sweep(trial, entry)


def start(trial: Trial, *, name: str, within_s: float) -> None:
    with trial.report.step(f"{name} start: launch") as entry:
        launch(trial, entry)
    with trial.report.step(f"{name} start: follow the log") as entry:
        follow_start(trial, entry, within_s=within_s)
    with trial.report.step(f"{name} start: probe and verdict") as entry:
        verify(trial, entry)
    with trial.report.step(f"{name} start: observe") as entry:
        observe(trial, entry)


def clean_up(trial: Trial) -> None:
    """Whatever a failed step left: by the agent where it answers, else one by one by marker."""
    for number, one in enumerate(trial.launches):
        launch_id = one["args"]["launch_id"]
        if trial.processes_of(launch_id):
            with contextlib.suppress(AgentRefused, SshError, NotAsItShouldBeError):
                trial.ask("stop", {"launch_id": launch_id, "grace_s": 5, "second_term_s": 2, "reason": "clean-up"})
        for process in trial.system.processes():
            if process.marker == launch_id and not process.gone:
                trial.system.signal(process.pid, process.start_time, signal.SIGKILL)
        log = Path(one["started"]["log_path"])
        if log.exists():
            mode = "ab" if number else "wb"
            with (trial.out / "vllm.log").open(mode) as kept:
                kept.write(log.read_bytes()[: LOG_KEPT // 2])
    if trial.session is not None:
        trial.session.close()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--site", help="folder with vLLM and what it needs, for PYTHONPATH")
    where.add_argument("--cpu", type=Path, help="virtual environment of the CPU build")
    parser.add_argument("--limit-s", type=float, default=540.0, help="seconds for everything (540)")
    parser.add_argument("--work", type=Path, help="folder on a local disk for model, state and logs")
    return parser.parse_args()


def main() -> int:
    args = read_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="accelerator-", dir=args.work)).resolve()
    model = work / "model"
    setting = on_cpu(folder=args.cpu, model=model) if args.cpu else on_gpu(site=args.site, model=model)
    report = Report(args.out / "accelerator.json", limit_s=args.limit_s)
    trial = Trial(out=args.out, work=work, report=report, setting=setting, gpu=not args.cpu)
    try:
        perform(trial)
    finally:
        clean_up(trial)
        shutil.rmtree(work, ignore_errors=True)
        report.figures["seconds"] = round(args.limit_s - report.left_s, 1)
        report.write()
    report.say(f"not as they should be: {', '.join(report.failed)}" if report.failed else "all as it should be")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
