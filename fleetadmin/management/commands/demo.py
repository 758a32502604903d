"""`python manage.py demo`: what `up --demo` does once everything runs: enrols the simulated hosts and starts a first deployment."""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from accounts.actors import local_actor
from accounts.models import Environment
from deployments.models import Deployment, Launch, Run
from deployments.planning.refusals import Refused
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_yaml import spec_from_yaml
from deployments.planning.states import RUN_TERMINAL, LaunchState, RunState
from deployments.services.plans import make_start_plan
from deployments.services.revisions import add_revision, create_deployment
from deployments.services.runs import request_run
from hosts import services
from hosts.models import Credential, Host

SIMULATOR_SECONDS = 60
ENROL_SECONDS = 60
RUN_SECONDS = 300
OBSERVE_SECONDS = 30
BY = local_actor("demo")

# Three instances on each of eight GPUs of 24 GB.
HOST = "gpu-b"
SPEC = """\
name: qwen3-demo
host: gpu-b
model: {model}
served_model_name: qwen3-0.6b
instances: 24
max_model_len: 4096
max_num_seqs: 32
"""


class Command(BaseCommand):
    help = "Enrols the simulated hosts and starts a first deployment, printing what happens."

    def handle(self, **options):
        hosts = self.wait_for_simulator(Path(settings.VAR_DIR) / "log" / "simulator.log")
        credential = self.credential(hosts[0])
        for described in hosts:
            self.enrol(described, credential)
        host = Host.objects.get(name=HOST)
        run = self.start(host)
        self.follow(run)

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def wait_for_simulator(self, log: Path) -> list[dict]:
        end = time.monotonic() + SIMULATOR_SECONDS
        while time.monotonic() < end:
            lines = [json.loads(line) for line in read_json_lines(log)]
            if any(line.get("ready") for line in lines):
                return [line for line in lines if "host_key" in line]
            time.sleep(0.1)
        raise CommandError(f"The simulated hosts did not start; see {log}.")

    def credential(self, described: dict) -> Credential:
        environment = Environment.objects.get(slug="default")
        known = Credential.objects.filter(environment=environment, name="simulated-hosts").first()
        return known or services.add_key(
            environment=environment,
            name="simulated-hosts",
            private_key=Path(described["private_key"]).read_text(encoding="utf-8"),
            passphrase="",
            by=BY,
            now=timezone.now(),
        )

    def enrol(self, described: dict, credential: Credential) -> None:
        """Propose, compare the fingerprint with what the simulator says of itself, confirm."""
        name = described["name"]
        if Host.objects.filter(name=name).exists():
            self.say(f"  {name} is known already.")
            return
        host = services.propose_host(
            environment=credential.environment,
            name=name,
            address=described["address"],
            port=described["port"],
            user=described["user"],
            credential=credential,
            by=BY,
            now=timezone.now(),
            model_roots=described.get("model_roots", []),
            vllm_roots=described.get("vllm_roots", []),
        )
        host = self.wait_for_host(host, {Host.State.KEY_SHOWN, Host.State.REFUSED})
        if host.state == Host.State.KEY_SHOWN:
            if f"{host.host_key_kind} {host.host_key}" != " ".join(described["host_key"].split()[:2]):
                raise CommandError(f"{name} shows another host key than its own.")
            services.confirm_key(host=host, fingerprint=host.host_key_fingerprint, by=BY, now=timezone.now())
            host = self.wait_for_host(host, {Host.State.ENROLLED, Host.State.REFUSED})
        if host.state == Host.State.ENROLLED:
            devices = list(host.devices.all())
            self.say(f"  {name}: enrolled, {len(devices)} device(s), {devices[0].name}")
        else:
            problem = host.problem or {"code": host.state, "message": "no answer yet"}
            self.say(f"  {name}: {problem['code']}: {problem['message']}")

    def wait_for_host(self, host: Host, states: set) -> Host:
        end = time.monotonic() + ENROL_SECONDS
        while host.state not in states and time.monotonic() < end:
            time.sleep(0.2)
            host = Host.objects.get(pk=host.pk)
        return host

    def still_serves(self, deployment: Deployment) -> bool:
        """Whether it serves by what the watcher saw since this start: rows of an earlier one prove nothing."""
        began = timezone.now()
        end = time.monotonic() + OBSERVE_SECONDS
        serving = deployment.launches.filter(state__in=["ready", "degraded", "unverified"])
        while serving.exclude(observed_at__gt=began).exists() and time.monotonic() < end:
            time.sleep(0.3)
        return serving.filter(observed_at__gt=began).exists()

    def start(self, host: Host) -> Run:
        deployment = Deployment.objects.filter(name="qwen3-demo").first()
        if deployment is not None and self.still_serves(deployment):
            self.say("qwen3-demo runs already.")
            sys.exit(0)
        model = next(m["path"] for m in host.facts.latest().body["models"] if "Qwen3-0.6B" in m["path"])
        spec = spec_from_yaml(SPEC.format(model=model))
        if not isinstance(spec, DeploymentSpec):
            raise CommandError(str(spec))
        now = timezone.now()
        if deployment is None:
            revision = create_deployment(environment=host.environment, spec=spec, by=BY, now=now)
        else:
            revision = add_revision(deployment=deployment, spec=spec, by=BY, now=now)
        made = make_start_plan(
            deployment=revision.deployment, revision=revision, allow_code_loading=False, by=BY, now=now
        )
        if isinstance(made, Refused):
            raise CommandError("\n".join(f"{r.code}: {r.message} {r.next_step}" for r in made.reasons))
        return request_run(plan=made, digest=made.digest, by=BY, now=now)

    def follow(self, run: Run) -> None:
        """Print how many instances are where, whenever that changed, until the run has ended."""
        self.say(f"Starting qwen3-demo: {os.environ.get('FLEETADMIN_DEMO_URL', '')}/deployments/runs/{run.pk}/")
        shown = ""
        end = time.monotonic() + RUN_SECONDS
        while time.monotonic() < end:
            run = Run.objects.get(pk=run.pk)
            words = describe(Launch.objects.filter(plan=run.plan_id))
            if words != shown:
                shown = words
                self.say(f"  {words}")
            if run.state in RUN_TERMINAL:
                break
            time.sleep(0.5)
        ready = Launch.objects.filter(plan=run.plan_id, state="ready").count()
        total = Launch.objects.filter(plan=run.plan_id).count()
        self.say(f"{ready} of {total} instances ready.")
        if run.state != RunState.SUCCEEDED:
            raise CommandError(f"The run ended as {run.state}: {(run.problem or {}).get('message', '')}")


def describe(launches) -> str:
    """How many instances are in which phase, the furthest first: "3 ready, 16 compiling, 5 planned"."""
    counts = Counter((order_of(launch), word_of(launch)) for launch in launches)
    return ", ".join(f"{count} {word}" for (_order, word), count in sorted(counts.items(), reverse=True))


def order_of(launch: Launch) -> int:
    states = list(LaunchState)
    percent = launch.progress.get("percent", 0) if launch.state == "starting" else 0
    return states.index(LaunchState(launch.state)) * 1000 + percent


def word_of(launch: Launch) -> str:
    told = launch.progress.get("label") if launch.state == "starting" else None
    return str(told or launch.state).lower()


def read_json_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
