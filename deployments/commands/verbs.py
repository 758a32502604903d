"""What each verb of `manage.py fleet` does. One function a verb; the permission it needs stands in VERBS."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from accounts.actors import Actor
from accounts.local import act_locally
from accounts.models import Environment
from deployments.commands.outcome import FAILED, OK, REFUSED, TIMED_OUT, Outcome, not_found, problem_lines, refused
from deployments.log_store import read_lines
from deployments.models import NEVER_ASKED, Deployment, Launch, Plan, Run
from deployments.planning.refusals import Refused
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_yaml import spec_from_yaml
from deployments.planning.states import RUN_ACTIVE, RUN_TERMINAL, RunState
from deployments.services.cancelling import request_cancel, request_force
from deployments.services.plans import make_restart_plan, make_start_plan, make_stop_plan, make_sweep_plan
from deployments.services.revisions import NameTaken, add_revision, create_deployment
from deployments.services.runs import RunRefused, request_run
from hosts import services as host_services
from hosts.models import Credential, Host
from hosts.ssh.errors import SshError

POLL_SECONDS = 0.3
STOP = "deployments.stop_deployment"


def list_hosts(options, actor: Actor) -> Outcome:
    rows = [host_row(host) for host in Host.objects.select_related("environment").prefetch_related("devices")]
    lines = [
        f"{row['name']:20} {row['state']:10} {row['login']:32} {len(row['devices'])} device(s)" for row in rows
    ] or ["No host yet. Enrol one: fleet enrol NAME --address … --user … --key FILE"]
    return Outcome(OK, {"hosts": rows}, lines)


def host_row(host: Host) -> dict:
    return {
        "name": host.name,
        "environment": host.environment.slug,
        "state": host.state,
        "login": host.login,
        "fingerprint": host.host_key_fingerprint,
        "machine_id": host.machine_id,
        "problem": host.problem,
        "last_seen_at": host.last_seen_at.isoformat() if host.last_seen_at else None,
        "devices": [
            {"uuid": d.uuid, "kind": d.kind, "name": d.name, "memory_total": d.memory_total} for d in host.devices.all()
        ],
    }


def enrol(options, actor: Actor) -> Outcome:
    """Propose, show the fingerprint, and with --fingerprint or --trust confirm it."""
    environment = Environment.objects.get(slug=options["environment"])
    now = timezone.now()
    waiting = Host.objects.filter(
        environment=environment,
        name=options["name"],
        address=options["address"],
        port=options["port"],
        state=Host.State.KEY_SHOWN,
    ).first()
    if waiting is not None:
        # Asked before, and its key waits for a confirmation: go on from there.
        return follow_enrolment(waiting, options, actor)
    try:
        credential = credential_of(options, environment, actor, now)
        host = host_services.propose_host(
            environment=environment,
            name=options["name"],
            address=options["address"],
            port=options["port"],
            user=options["user"],
            credential=credential,
            by=actor,
            now=now,
            model_roots=options["model_root"],
            vllm_roots=options["vllm_root"],
            state_root=options["state_root"] or "",
        )
    except host_services.Refused as refusal:
        return refused(refusal.problem)
    except SshError as error:
        return refused({"code": error.code, "message": error.message, "next_step": error.next_step})
    return follow_enrolment(host, options, actor)


def credential_of(options, environment: Environment, actor: Actor, now) -> Credential:
    name = options["credential"] or f"{options['name']}-key"
    known = Credential.objects.filter(environment=environment, name=name).first()
    if known is not None:
        return known
    if not options["key"]:
        raise host_services.Refused(no_credential(name))
    return host_services.add_key(
        environment=environment,
        name=name,
        private_key=read_file(options["key"]),
        passphrase="",
        by=actor,
        now=now,
    )


def no_credential(name: str) -> dict:
    return {
        "code": "CREDENTIAL_UNKNOWN",
        "message": f"There is no credential {name} in this environment.",
        "next_step": "Give --key FILE to add one, or the name of one that is there.",
    }


def read_file(name: str) -> str:
    """The text of a file that the command line names. Raises host_services.Refused when it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        problem = {
            "code": "FILE_UNREADABLE",
            "message": f"{name} cannot be read: {reason}.",
            "next_step": "Check the name and its permissions.",
        }
        raise host_services.Refused(problem) from error


def refresh(options, actor: Actor) -> Outcome:
    """Ask a host for fresh facts, and wait for them."""
    host = Host.objects.filter(environment__slug=options["environment"], name=options["host"]).first()
    if host is None:
        return not_found(options["host"])
    host_services.ask_for_facts(host=host, by=actor, now=timezone.now())
    host = wait_for(lambda: Host.objects.get(pk=host.pk), lambda row: row.asked_at is None, options["timeout"])
    if host.asked_at is not None:
        return Outcome(TIMED_OUT, {"host": host_row(host)}, [f"{host.name} has not answered yet."])
    if host.problem:
        return Outcome(FAILED, {"host": host_row(host)}, problem_lines(host.problem))
    return Outcome(OK, {"host": host_row(host)}, [f"{host.name}: facts are fresh."])


def follow_enrolment(host: Host, options, actor: Actor) -> Outcome:
    settled = {Host.State.KEY_SHOWN, Host.State.ENROLLED, Host.State.REFUSED}
    host = wait_for(lambda: Host.objects.get(pk=host.pk), lambda row: row.state in settled, options["timeout"])
    if host.state == Host.State.KEY_SHOWN:
        wanted = options["fingerprint"]
        if not wanted and not options["trust"]:
            return Outcome(
                OK,
                {"host": host_row(host)},
                [
                    f"{host.name} shows the host key {host.host_key_fingerprint} ({host.host_key_kind}).",
                    "Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host, then confirm it on",
                    "its page, or run the same command again with --fingerprint.",
                ],
            )
        try:
            host_services.confirm_key(
                host=host, fingerprint=wanted or host.host_key_fingerprint, by=actor, now=timezone.now()
            )
        except host_services.Refused as refusal:
            return refused(refusal.problem)
        host = wait_for(
            lambda: Host.objects.get(pk=host.pk),
            lambda row: row.state in {Host.State.ENROLLED, Host.State.REFUSED},
            options["timeout"],
        )
    return enrolment_outcome(host)


def enrolment_outcome(host: Host) -> Outcome:
    if host.state == Host.State.REFUSED:
        return Outcome(REFUSED, {"host": host_row(host), "refused": [host.problem]}, problem_lines(host.problem))
    if host.state != Host.State.ENROLLED:
        return Outcome(TIMED_OUT, {"host": host_row(host)}, [f"{host.name} is not enrolled yet: {host.state}."])
    devices = ", ".join(device.name for device in host.devices.all())
    return Outcome(OK, {"host": host_row(host)}, [f"{host.name} is enrolled: {devices}."])


def make_plan(options, actor: Actor) -> Outcome:
    """Show what applying the file would do. All of it is rolled back: no deployment, no revision, nothing held."""
    with transaction.atomic():
        outcome, _plan = plan_from_file(options, actor)
        transaction.set_rollback(True)
    return outcome


def apply(options, actor: Actor) -> Outcome:
    """Plan the file and start it. Exit code 0 with --wait: every instance serves."""
    outcome, plan = plan_from_file(options, actor)
    if plan is None:
        return outcome
    return start_run(plan, options, actor)


def plan_from_file(options, actor: Actor) -> tuple[Outcome, Plan | None]:
    try:
        spec = spec_from_yaml(read_file(options["file"]))
    except host_services.Refused as refusal:
        return refused(refusal.problem), None
    if not isinstance(spec, DeploymentSpec):
        problems = [
            {"code": item.code, "message": item.message, "next_step": f"Correct {item.path or 'the file'}."}
            for item in spec.items
        ]
        return Outcome(REFUSED, {"refused": problems}, [line for p in problems for line in problem_lines(p)]), None
    now = timezone.now()
    environment = Environment.objects.get(slug=options["environment"])
    deployment = Deployment.objects.filter(environment=environment, name=spec.name).first()
    if deployment is None:
        try:
            revision = create_deployment(environment=environment, spec=spec, by=actor, now=now)
        except NameTaken:
            return not_found(spec.name), None
    else:
        revision = add_revision(deployment=deployment, spec=spec, by=actor, now=now)
    made = make_start_plan(
        deployment=revision.deployment,
        revision=revision,
        allow_code_loading=options["allow_code_loading"],
        by=actor,
        now=now,
    )
    return (refusal_outcome(made), None) if isinstance(made, Refused) else (plan_outcome(made), made)


def refusal_outcome(refusal: Refused) -> Outcome:
    reasons = [asdict(reason) for reason in refusal.reasons]
    return Outcome(REFUSED, {"refused": reasons}, [line for reason in reasons for line in problem_lines(reason)])


def plan_outcome(plan: Plan) -> Outcome:
    intent = json.loads(bytes(plan.intent))
    lines = [f"Plan {plan.pk} {plan.digest[:12]} on {plan.host.name}:"]
    for launch in intent["launches"]:
        lines.append(f"  {launch['instance']['name']} on {', '.join(launch['devices'])}, port {launch['port']}")
        lines.append(f"    {' '.join(launch['argv'])}")
    lines.extend(f"  stops {stop['launch_id']}" for stop in intent["stops"])
    lines.extend(sweep_lines(plan, intent))
    lines.extend(f"  {note['level']}: {note['message']}" for note in plan.display["notes"])
    return Outcome(OK, {"plan": plan.pk, "digest": plan.digest, "intent": intent}, lines)


def sweep_lines(plan: Plan, intent: dict) -> list[str]:
    """Each process that would be signalled with its proof, and each that was found and is left alone."""
    named = [
        f"    ends {process['pid']} {process['title']} (proof: {process['proof']})"
        for stop in intent["stops"]
        for process in stop.get("processes", [])
    ]
    spared = [
        f"    leaves {item['pid']} {item['title']} of {item['user']} ({item['why']})"
        for item in plan.display.get("left_alone", [])
    ]
    return named + spared


def start_run(plan: Plan, options, actor: Actor) -> Outcome:
    try:
        run = request_run(plan=plan, digest=plan.digest, by=actor, now=timezone.now())
    except RunRefused as refusal:
        return refused(refusal.problem)
    if not options["wait"]:
        return Outcome(OK, {"run": run.pk}, [f"Run {run.pk} is queued."])
    run = wait_for(
        lambda: Run.objects.select_related("plan").get(pk=run.pk),
        lambda row: row.state in RUN_TERMINAL,
        options["timeout"],
    )
    return run_outcome(run)


def run_outcome(run: Run) -> Outcome:
    launches = [launch_row(launch) for launch in run.plan.launches.select_related("instance", "host")]
    body = {"run": run.pk, "state": run.state, "problem": run.problem, "launches": launches}
    lines = [f"Run {run.pk}: {run.state}."]
    lines.extend(f"  {row['instance']}: {row['state']} {row['sentence']}".rstrip() for row in launches)
    if run.problem:
        lines.extend(problem_lines(run.problem))
    if run.state not in RUN_TERMINAL:
        return Outcome(TIMED_OUT, body, [*lines, "It goes on; see its page."])
    return Outcome(OK if run.state == RunState.SUCCEEDED else FAILED, body, lines)


def launch_row(launch: Launch) -> dict:
    words = (launch.cause or launch.verdict or {}).get("sentence", "")
    return {
        "launch_id": str(launch.pk),
        "instance": launch.instance.name,
        "host": launch.host.name,
        "state": launch.state,
        "address": launch.address,
        "port": launch.port,
        "phase": launch.phase,
        "sentence": words,
        "observed_at": launch.observed_at.isoformat() if launch.observed_at else None,
    }


def status(options, actor: Actor) -> Outcome:
    """Every instance with its state and the reason for it."""
    deployments = Deployment.objects.select_related("environment")
    if options["deployment"]:
        deployments = deployments.filter(name=options["deployment"])
        if not deployments:
            return not_found(options["deployment"])
    rows = [row for deployment in deployments for row in deployment_rows(deployment)]
    lines = [
        f"{row['instance']:24} {row['state']:10} {row['host']:14} {row['address']}:{row['port']} {row['sentence']}".rstrip()
        for row in rows
    ] or ["Nothing runs."]
    return Outcome(OK, {"instances": rows}, lines)


def deployment_rows(deployment: Deployment) -> list[dict]:
    rows = []
    for instance in deployment.instances.all():
        asked_for = instance.launches.exclude(NEVER_ASKED).select_related("instance", "host")
        newest = asked_for.order_by("-created_at").first()
        if newest is not None:
            rows.append(launch_row(newest))
    return rows


def logs(options, actor: Actor) -> Outcome:
    """The stored log of an instance's newest launch."""
    launch = (
        Launch.objects.filter(instance__name=options["instance"]).exclude(log_path="").order_by("-created_at").first()
    )
    if launch is None:
        return not_found(options["instance"])
    stream = launch.log
    first = max(1, stream.lines - options["lines"] + 1)
    lines = [line for _, line in read_lines(stream, first=first, limit=options["lines"])]
    return Outcome(OK, {"launch_id": str(launch.pk), "first_line": first, "lines": lines}, lines)


def stop(options, actor: Actor) -> Outcome:
    return remove(options, actor, make_stop_plan)


def sweep(options, actor: Actor) -> Outcome:
    """Remove what is left of launches whose API server is gone; says first what that ends and what it leaves alone."""
    deployment = Deployment.objects.filter(name=options["deployment"]).first()
    if deployment is None:
        return not_found(options["deployment"])
    made = make_sweep_plan(deployment=deployment, by=actor, now=timezone.now())
    if isinstance(made, Refused):
        return refusal_outcome(made)
    preview = plan_outcome(made)
    started = start_run(made, options, actor)
    body = {"intent": preview.body["intent"], "left_alone": made.display["left_alone"], **started.body}
    return replace(started, body=body, lines=[*preview.lines, *started.lines])


def restart(options, actor: Actor) -> Outcome:
    """Replace what runs by launches of the newest revision, in order."""
    act_locally(STOP)
    deployment = Deployment.objects.filter(name=options["deployment"]).first()
    revision = deployment.revisions.first() if deployment else None
    if revision is None:
        return not_found(options["deployment"])
    made = make_restart_plan(
        deployment=deployment,
        revision=revision,
        at_a_time=options["at_a_time"],
        allow_code_loading=options["allow_code_loading"],
        by=actor,
        now=timezone.now(),
    )
    return refusal_outcome(made) if isinstance(made, Refused) else start_run(made, options, actor)


def cancel(options, actor: Actor) -> Outcome:
    """End the deployment's active run. --force: of one that is being cancelled already, without waiting."""
    deployment = Deployment.objects.filter(name=options["deployment"]).first()
    if deployment is None:
        return not_found(options["deployment"])
    run = deployment.runs.filter(state__in=[state.value for state in RUN_ACTIVE]).first()
    if run is None:
        return refused(nothing_to_cancel(deployment.name))
    try:
        if options["force"]:
            act_locally("deployments.force_cancel")
            request_force(run=run, by=actor, now=timezone.now())
        else:
            request_cancel(run=run, by=actor, now=timezone.now())
    except RunRefused as refusal:
        return refused(refusal.problem)
    return cancel_outcome(run, options)


def nothing_to_cancel(name: str) -> dict:
    return {
        "code": "NOTHING_TO_CANCEL",
        "message": f"No run of {name} is active.",
        "next_step": "Look at its state: fleet status.",
    }


def cancel_outcome(run: Run, options) -> Outcome:
    """Exit code 0 with --wait: the host has said that nothing of it is left."""
    read = Run.objects.select_related("plan").get
    if not options["wait"]:
        return Outcome(OK, {"run": run.pk}, [f"Run {run.pk} is being cancelled."])
    run = wait_for(lambda: read(pk=run.pk), lambda row: row.state in RUN_TERMINAL, options["timeout"])
    outcome = run_outcome(run)
    return replace(outcome, code=OK) if run.state == RunState.CANCELLED else outcome


def remove(options, actor: Actor, make: Callable) -> Outcome:
    deployment = Deployment.objects.filter(name=options["deployment"]).first()
    if deployment is None:
        return not_found(options["deployment"])
    made = make(deployment=deployment, by=actor, now=timezone.now())
    return refusal_outcome(made) if isinstance(made, Refused) else start_run(made, options, actor)


def wait_for(read: Callable, done: Callable, seconds: float):
    """Read until it is done or the time is over; returns what was read last."""
    end = time.monotonic() + seconds
    row = read()
    while not done(row) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        row = read()
    return row


VERBS: dict[str, tuple[str, Callable]] = {
    "hosts": ("hosts.view_host", list_hosts),
    "enrol": ("hosts.add_host", enrol),
    "refresh": ("hosts.refresh_host", refresh),
    "plan": ("deployments.change_deployment", make_plan),
    "apply": ("deployments.start_deployment", apply),
    "status": ("deployments.view_deployment", status),
    "logs": ("deployments.read_log", logs),
    "stop": (STOP, stop),
    "restart": ("deployments.start_deployment", restart),
    "sweep": ("hosts.sweep_host", sweep),
    "cancel": (STOP, cancel),
}
