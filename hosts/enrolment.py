"""The steps of an enrolment, carried out by the worker; and fresh facts, which are the last of them again.

    PROPOSED --host key read--> KEY_SHOWN --a person confirms--> CONFIRMED --signed in, facts read--> ENROLLED

Any failure on the way: REFUSED, with what to do about it.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.actors import system_actor
from audit.record import record
from hosts import problems
from hosts.agent_session import AgentRefused
from hosts.agent_stream import read_refusal
from hosts.connections import connections, limits
from hosts.facts.model import FactsProblem
from hosts.facts.model import HostFacts as Facts
from hosts.facts.parse import parse_facts
from hosts.live import announce
from hosts.models import Device, Host, HostFacts, HostWatch
from hosts.ssh.errors import SshError
from hosts.ssh.paramiko_runner import read_host_key
from hosts.ssh.retry import waits_for_person

CLAIM_SECONDS = 120
FACTS_TIMEOUT_SECONDS = 60
FACTS_KEPT = 500
# What the agent says where /etc/machine-id is empty: nothing tells such machines apart.
UNKNOWN_MACHINE = "unknown"
WORKER = system_actor("worker")


def work_on_host(*, host_id: int, now: datetime) -> None:
    """Do the host's due job, if nobody else does."""
    if not claim(host_id=host_id, now=now):
        return
    host = Host.objects.select_related("credential", "environment").get(pk=host_id)
    try:
        found = STEPS[host.state](host)
    except (SshError, AgentRefused) as error:
        found = problems.problem_of(error)
    except Exception as error:
        finish(host, problems.unexpected(error))
        raise
    finish(host, found)


def claim(*, host_id: int, now: datetime) -> bool:
    """Take the job by compare-and-swap: true for exactly one caller."""
    due = Host.objects.filter(pk=host_id, asked_at__isnull=False).filter(
        Q(claimed_until__isnull=True) | Q(claimed_until__lt=now)
    )
    return due.update(claimed_until=now + timedelta(seconds=CLAIM_SECONDS)) == 1


def finish(host: Host, problem: dict | None) -> None:
    """Give the job back; a failure before the enrolment is complete refuses it."""
    values = {"asked_at": None, "claimed_until": None, "problem": problem}
    with transaction.atomic():
        if problem is not None and host.state != Host.State.ENROLLED:
            values["state"] = Host.State.REFUSED
            record(actor=WORKER, action="host.enrolment_refused", subject=host, after={"code": problem["code"]})
        Host.objects.filter(pk=host.pk).update(**values)
        release_watch(host, problem)
        announce("fleet", f"host.{host.pk}")


def release_watch(host: Host, problem: dict | None) -> None:
    """Let the watcher try again, unless the sign-in or an identity was just refused once more.

    Jobs of an enrolled host are asked for by people, or by a watcher that hears it: one press is one attempt.
    """
    if not waits_for_person((problem or {}).get("code")):
        HostWatch.objects.filter(host=host, waits_for_person=True).update(waits_for_person=False)


def show_key(host: Host) -> None:
    """Ask for the host key without signing in; a person compares the fingerprint."""
    key = read_host_key(host.address, host.port, limits=limits())
    Host.objects.filter(pk=host.pk).update(
        state=Host.State.KEY_SHOWN,
        host_key_kind=key.kind,
        host_key=key.base64,
        host_key_fingerprint=key.fingerprint,
    )


def sign_in(host: Host) -> dict | None:
    """The first sign-in: identity, facts, enrolled."""
    facts, body = read_facts(host)
    if isinstance(facts, FactsProblem):
        return problems.problem_of(facts)
    if facts.machine_id == UNKNOWN_MACHINE:
        return problems.machine_id_missing()
    unfit = unfit_state_root(body)
    if unfit is not None:
        return unfit
    first = Host.objects.filter(machine_id=facts.machine_id).exclude(pk=host.pk).first()
    if first is not None:
        connections.forget(host.pk)
        return problems.machine_enrolled_already(first)
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(state=Host.State.ENROLLED, machine_id=facts.machine_id)
        store_facts(host, facts, body)
        record(
            actor=WORKER,
            action="host.enrolled",
            subject=host,
            after={"machine_id": facts.machine_id, "host_key": host.host_key_fingerprint},
        )
    return None


def refresh(host: Host) -> dict | None:
    """Fresh facts of an enrolled host, if it still is the same machine."""
    facts, body = read_facts(host)
    if isinstance(facts, FactsProblem):
        return problems.problem_of(facts)
    if facts.machine_id != host.machine_id:
        connections.forget(host.pk)
        return problems.identity_changed(wanted=host.machine_id, found=facts.machine_id)
    with transaction.atomic():
        store_facts(host, facts, body)
    return unfit_state_root(body)


def unfit_state_root(body: dict) -> dict | None:
    """Why nothing could ever be launched there, as the agent says: told now and not at the first start."""
    root = body.get("state_root")
    refusal = root.get("refusal") if isinstance(root, dict) else None
    return problems.problem_of(read_refusal(refusal)) if isinstance(refusal, dict) else None


def read_facts(host: Host) -> tuple[Facts | FactsProblem, dict]:
    with connections.session(host) as session:
        body = session.request(
            "facts",
            {"model_roots": host.model_roots, "vllm_roots": host.vllm_roots},
            timeout=FACTS_TIMEOUT_SECONDS,
        )
    return parse_facts(body), body


def store_facts(host: Host, facts: Facts, body: dict) -> None:
    moment = timezone.now()
    HostFacts.objects.create(host=host, taken_at=moment, body=body)
    forgotten = host.facts.order_by("-taken_at").values_list("pk", flat=True)[FACTS_KEPT:]
    HostFacts.objects.filter(pk__in=list(forgotten)).delete()
    Host.objects.filter(pk=host.pk).update(boot_id=facts.boot_id, last_seen_at=moment)
    present = {device.uuid for device in facts.devices}
    host.devices.exclude(uuid__in=present).update(present=False)
    for device in facts.devices:
        Device.objects.update_or_create(
            host=host,
            uuid=device.uuid,
            defaults={
                "kind": device.kind,
                "index": device.index,
                "name": device.name,
                "memory_total": device.memory_total,
                "present": True,
            },
        )


STEPS = {
    Host.State.PROPOSED: show_key,
    Host.State.CONFIRMED: sign_in,
    Host.State.ENROLLED: refresh,
}
