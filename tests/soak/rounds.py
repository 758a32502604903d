"""One round: a plan, a worker that is killed, the workers after it, and everything that must be true then."""

import os
import signal
import time
from pathlib import Path

from django.core.management import call_command
from django.db import connections as databases
from django.utils import timezone

from accounts.actors import Actor
from accounts.models import Environment
from accounts.services import ensure_shipped_roles
from deployments.models import Deployment, Event, Launch, Plan, PortReservation, Reservation, Run
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from deployments.planning.states import RUN_TERMINAL
from deployments.services import runs
from deployments.services.plans import make_restart_plan, make_start_plan, make_stop_plan
from deployments.services.revisions import create_deployment
from deployments.services.runs import execute_run, request_run
from hosts import queue, services
from hosts.connections import connections
from hosts.models import Host
from tests.soak.boundaries import KINDS, every_boundary, signal_at
from tests.soak.simulated import Simulated

SOAK = Actor(label="soak")
INSTANCES = 2
FACTS_EVERY = 20  # rounds; plans want facts of the last minutes
LONGEST_WORK_S = 40.0
RETRY_S = 0.5  # after a connection that failed, instead of five seconds and more


class Soak:
    """A deployment of two instances that is started, restarted and stopped, round after round."""

    def __init__(self, host: Simulated, *, most_workers: int, lease_s: float, paused: bool = False) -> None:
        self.simulated = host
        self.most_workers = most_workers
        self.lease_s = lease_s
        self.paused = paused
        self.boundaries = every_boundary()
        self.killed = 0
        prepare_database()
        self.host = enrol(host)
        self.deployment = deploy(self.host, model=f"{host.described['model_roots'][0]}/Qwen3-0.6B")
        self.nudge = queue.send

    def play(self, number: int) -> dict:
        """One round, as one row of the output; `wrong` lists what should not be."""
        kind = KINDS[(number - 1) % len(KINDS)]
        step, moment = next(self.boundaries[kind])
        if number % FACTS_EVERY == 0:
            services.ask_for_facts(host=self.host, by=SOAK, now=timezone.now())
            connections.close_all()
        starts = self.simulated.starts()
        began = time.monotonic()
        how = signal.SIGSTOP if self.paused else signal.SIGKILL
        run, workers, changed = self.carry_out(self.plan(kind), step, moment, how)
        wrong = [*changed, *self.find_wrong(kind, run, started=self.simulated.starts() - starts)]
        met = f"{moment} {step}"
        row = {"round": number, "kind": kind, how.name: met, "workers": workers, "state": run.state}
        return {**row, "seconds": round(time.monotonic() - began, 1), "wrong": wrong}

    def plan(self, kind: str) -> Plan:
        common = {"deployment": self.deployment, "by": SOAK, "now": timezone.now()}
        starting = {"revision": self.deployment.revisions.first(), "allow_code_loading": False}
        make = {"start": make_start_plan, "restart": make_restart_plan, "stop": make_stop_plan}[kind]
        plan = make(**common, **({} if kind == "stop" else starting))
        assert isinstance(plan, Plan), plan
        return plan

    def carry_out(self, plan: Plan, step: str, moment: str, how: signal.Signals) -> tuple[Run, int, list[str]]:
        """The run at its end, how many workers it took, and what one that woke up after that has changed."""
        queue.send = lambda _task, _arguments: None
        try:
            run = request_run(plan=plan, digest=plan.digest, by=SOAK, now=timezone.now())
            first = begin_work(run.pk, signals=(step, moment, how))
            status = wait_for_end(first)
            self.killed += os.WIFSTOPPED(status) if self.paused else os.WIFSIGNALED(status)
            workers = 1
            while workers < self.most_workers and Run.objects.get(pk=run.pk).state not in RUN_TERMINAL:
                time.sleep(self.lease_s / 4)
                workers += bool(work(run.pk) == 0 and Run.objects.get(pk=run.pk).attempt > workers)
            changed = self.wake(first) if self.paused and os.WIFSTOPPED(status) else []
        finally:
            queue.send = self.nudge
        return Run.objects.get(pk=run.pk), workers, changed

    def wake(self, worker: int) -> list[str]:
        """Let a paused worker go on once another has ended its run: nothing may change, on the host or in the rows."""
        before = self.everything()
        os.kill(worker, signal.SIGCONT)
        wait_for_end(worker)
        after = self.everything()
        return [f"{name} changed: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]

    def everything(self) -> dict:
        state = self.simulated.state()
        return {
            "processes": sorted((each["pid"], each["title"]) for each in state["processes"]),
            "devices": [(each["uuid"], each["used"]) for each in state["devices"]],
            "starts": state["starts"],
            "runs": list(Run.objects.order_by("pk").values_list("pk", "state", "attempt")),
            "launches": sorted(Launch.objects.values_list("pk", "state", "pid", "phase")),
            "events": Event.objects.count(),
            "ports": sorted(PortReservation.objects.filter(until__isnull=True).values_list("port", "launch_id")),
        }

    def find_wrong(self, kind: str, run: Run, *, started: int) -> list[str]:
        living = 0 if kind == "stop" else INSTANCES
        launches = Launch.objects.filter(plan=run.plan)
        found = {
            f"the run is {run.state}: {run.problem}": run.state == "succeeded",
            f"{started} starts": started == (0 if kind == "stop" else INSTANCES),
            f"{self.simulated.servers()} servers live": self.simulated.servers() == living,
            "memory is held": living > 0 or self.simulated.bytes_held() == 0,
            "ports": PortReservation.objects.filter(until__isnull=True).count() == living,
            "reservations": Reservation.objects.filter(until__isnull=True).count() == living,
            "serving": Launch.objects.filter(state="ready").count() == living,
            "a launch came to a state twice": all(moved_once(launch) for launch in launches),
        }
        return [words for words, good in found.items() if not good]


def moved_once(launch: Launch) -> bool:
    states = list(Event.objects.filter(launch=launch).values_list("after", flat=True))
    return len(states) == len(set(states))


def work(run_id: int) -> int:
    """A worker in a process of its own; its wait status."""
    return wait_for_end(begin_work(run_id))


def begin_work(run_id: int, *, signals: tuple[str, str, signal.Signals] | None = None) -> int:
    """A worker in a process of its own, that may send itself a signal; its pid."""
    databases.close_all()
    connections.close_all()
    child = os.fork()
    if child:
        return child
    try:
        runs.RETRY_SECONDS = RETRY_S
        if signals is not None:
            signal_at(*signals)
        execute_run(run_id=run_id, now=timezone.now())
    finally:
        os._exit(0)


def wait_for_end(child: int) -> int:
    """The wait status of a worker that ended or stopped. One that hangs is ended: what it should have done is then missing."""
    until = time.monotonic() + LONGEST_WORK_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended:
            return status
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.02)


def prepare_database() -> None:
    Path(os.environ["FLEETADMIN_VAR"]).mkdir(parents=True, exist_ok=True)
    call_command("migrate", verbosity=0, interactive=False)
    ensure_shipped_roles()


def enrol(simulated: Simulated) -> Host:
    """Tasks are eager, so that each step of the enrolment has been done when its request returns."""
    import hosts.tasks  # noqa: F401

    described = simulated.described
    environment = Environment.objects.get(slug="default")
    credential = services.add_key(
        environment=environment,
        name="key",
        private_key=Path(described["private_key"]).read_text("utf-8"),
        passphrase="",
        by=SOAK,
        now=timezone.now(),
    )
    host = services.propose_host(
        environment=environment,
        name=described["name"],
        address=described["address"],
        port=described["port"],
        user=described["user"],
        credential=credential,
        by=SOAK,
        now=timezone.now(),
        model_roots=described["model_roots"],
        vllm_roots=described["vllm_roots"],
    )
    host.refresh_from_db()
    services.confirm_key(host=host, fingerprint=host.host_key_fingerprint, by=SOAK, now=timezone.now())
    host.refresh_from_db()
    assert host.state == Host.State.ENROLLED, host.problem
    return host


def deploy(host: Host, *, model: str) -> Deployment:
    spec = parse_spec(
        {
            "name": "soak",
            "host": host.name,
            "model": model,
            "served_model_name": "qwen3",
            "instances": INSTANCES,
            "max_model_len": 4096,
            "max_num_seqs": 32,
        }
    )
    assert isinstance(spec, DeploymentSpec), spec
    revision = create_deployment(environment=host.environment, spec=spec, by=SOAK, now=timezone.now())
    return revision.deployment
