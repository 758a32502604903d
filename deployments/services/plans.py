"""Making a plan: decided by the pure planner, then written down with every id, port and byte held for it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from accounts.actors import Actor
from audit.record import record
from deployments import ledger
from deployments.models import (
    Deployment,
    Instance,
    Launch,
    LogStream,
    Plan,
    PortReservation,
    Rank,
    Reservation,
    Revision,
)
from deployments.planning import plan as planned
from deployments.planning.build_restart import build_restart_plan
from deployments.planning.build_start import build_start_plan
from deployments.planning.build_stop import build_stop_plan
from deployments.planning.refusals import Refusal, RefusalCode, Refused
from deployments.planning.spec import DeploymentSpec
from deployments.planning.states import LaunchState
from deployments.services.revisions import spec_of
from deployments.transitions import move_launch
from hosts.facts.model import FactsProblem
from hosts.facts.parse import parse_facts
from hosts.facts.uses import with_uses
from hosts.live import announce
from hosts.models import Host
from hosts.queries import host_by_name, later_uses, latest_facts, secret_names

PLAN_LIFETIME = timedelta(hours=1)


def make_start_plan(
    *, deployment: Deployment, revision: Revision, allow_code_loading: bool, by: Actor, now: datetime
) -> Plan | Refused:
    """A stored start plan with its reservations, or every reason why there is none."""

    def build(given: Given) -> planned.Plan | Refused:
        return build_start_plan(**given.common, taken=ledger.taken(given.host, deployment))

    return make_launching_plan(
        Plan.Kind.START, build, revision=revision, allow_code_loading=allow_code_loading, by=by, now=now
    )


def make_restart_plan(
    *,
    deployment: Deployment,
    revision: Revision,
    allow_code_loading: bool,
    by: Actor,
    now: datetime,
    launches: list[Launch] | None = None,
    at_a_time: int = 1,
) -> Plan | Refused:
    """A stored plan that replaces these launches, or all that live, in order; or every reason why there is none."""

    def build(given: Given) -> planned.Plan | Refused:
        taken = ledger.taken(given.host, deployment)
        chosen = ledger.live_launches(deployment).filter(host=given.host) if launches is None else launches
        begun = {str(launch.pk) for launch in chosen if launch.state != LaunchState.PLANNED}
        targets = [item for item in taken.instances if item.launch_id in begun]
        return build_restart_plan(**given.common, taken=taken, targets=targets, at_a_time=at_a_time)

    return make_launching_plan(
        Plan.Kind.RESTART, build, revision=revision, allow_code_loading=allow_code_loading, by=by, now=now
    )


@dataclass(frozen=True, kw_only=True)
class Given:
    """What every plan that starts something is made from."""

    host: Host
    common: Mapping[str, Any]


def make_launching_plan(
    kind: Plan.Kind,
    build: Callable[[Given], planned.Plan | Refused],
    *,
    revision: Revision,
    allow_code_loading: bool,
    by: Actor,
    now: datetime,
) -> Plan | Refused:
    deployment, spec = revision.deployment, spec_of(revision)
    refused = refuse_deployment(deployment, spec)
    host = host_by_name(environment_id=deployment.environment_id, name=spec.host)
    if refused is not None or host is None:
        return refused or refuse(
            "WRONG_HOST",
            _("There is no enrolled host named %(name)s here.") % {"name": spec.host},
            _("Enrol it, or choose another host in the deployment."),
        )
    stored = latest_facts(host)
    facts = parse_facts(stored.body) if stored else None
    if facts is None or isinstance(facts, FactsProblem):
        return refuse(
            "FACTS_TOO_OLD",
            _("No usable facts of %(name)s are known.") % {"name": host.name},
            _("Press Refresh on the host's page."),
        )
    common = {
        "spec": spec,
        "revision": revision_ref(revision),
        "host": host_ref(host),
        "facts": with_uses(facts, later_uses(host, since=stored.taken_at)),
        "facts_age_s": max(0, int((now - stored.taken_at).total_seconds())),
        "ids": lambda: str(uuid4()),
        "allow_code_loading": allow_code_loading and not deployment.environment.protected,
    }
    with transaction.atomic():
        ledger.lock_host(host)
        drop_open_plans(deployment, now=now, by=by)
        built = build(Given(host=host, common=common))
        if isinstance(built, Refused):
            return built
        return keep_plan(built, kind=kind, deployment=deployment, revision=revision, host=host, by=by, now=now)


def refuse_deployment(deployment: Deployment, spec: DeploymentSpec) -> Refused | None:
    """Whether the deployment may not start anything, whatever its host says."""
    if deployment.archived_at is not None:
        return refuse(
            "DEPLOYMENT_ARCHIVED",
            _("%(name)s is archived.") % {"name": deployment.name},
            _("Restore it on its page; then plan the start again."),
        )
    missing = sorted(set(spec.secrets.values()) - secret_names(environment_id=deployment.environment_id))
    if missing:
        return refuse(
            "SECRET_MISSING",
            _("There is no secret named %(names)s in this environment.") % {"names": ", ".join(missing)},
            _("Add it under Credentials, or take it out of the deployment."),
        )
    return None


def make_stop_plan(
    *, deployment: Deployment, by: Actor, now: datetime, launches: list[Launch] | None = None
) -> Plan | Refused:
    """A plan that stops these launches, or all that live."""
    chosen = ledger.live_launches(deployment) if launches is None else launches
    return make_removal_plan(Plan.Kind.STOP, deployment=deployment, launches=chosen, by=by, now=now)


def make_sweep_plan(*, deployment: Deployment, by: Actor, now: datetime) -> Plan | Refused:
    """A plan that removes what is left of launches whose leader is gone."""
    orphaned = ledger.live_launches(deployment).filter(state=LaunchState.ORPHANED)
    return make_removal_plan(Plan.Kind.SWEEP, deployment=deployment, launches=orphaned, by=by, now=now)


def make_removal_plan(kind, *, deployment: Deployment, launches, by: Actor, now: datetime) -> Plan | Refused:
    rows = [launch for launch in launches if launch.state != LaunchState.PLANNED]
    if not rows:
        return refuse(
            "NOTHING_TO_STOP",
            _("Nothing of %(name)s runs.") % {"name": deployment.name},
            _("Reload the page: it may have ended a moment ago."),
        )
    hosts = {launch.host for launch in rows}
    if len(hosts) > 1:
        return refuse("WRONG_HOST", _("These launches lie on several hosts."), _("Stop them host by host."))
    host = hosts.pop()
    with transaction.atomic():
        drop_open_plans(deployment, now=now, by=by)
        built = build_stop_plan(
            deployment_id=deployment.pk,
            deployment_name=deployment.name,
            host=host_ref(host),
            targets=tuple(ledger.running_instance(launch) for launch in rows),
            reason=str(kind.value),
            revision=revision_ref(rows[0].revision),
            kind=kind.value,
        )
        if isinstance(built, Refused):
            return built
        plan = keep_plan(built, kind=kind, deployment=deployment, revision=rows[0].revision, host=host, by=by, now=now)
        if kind == Plan.Kind.SWEEP:
            plan.display["left_alone"] = left_alone(rows)
            plan.save(update_fields=["display"])
        return plan


def left_alone(launches: list[Launch]) -> list[dict]:
    """What was found beside these orphans and is not proven to be of any of them: each process once, with why."""
    ours = {(process["pid"], process["start_time"]) for launch in launches for process in launch.processes}
    found = {(item["pid"], item["start_time"]): item for launch in launches for item in launch.left_alone}
    return [item for key, item in found.items() if key not in ours]


def refuse(code: str, message: str, next_step: str) -> Refused:
    return Refused(reasons=(Refusal(code=RefusalCode(code), message=message, next_step=next_step),))


def revision_ref(revision: Revision) -> planned.RevisionRef:
    return planned.RevisionRef(
        id=revision.pk,
        number=revision.number,
        digest=revision.digest,
        deployment_id=revision.deployment_id,
        deployment_name=revision.deployment.name,
    )


def host_ref(host) -> planned.HostRef:
    return planned.HostRef(
        id=host.pk,
        name=host.name,
        machine_id=host.machine_id,
        host_key_fingerprint=host.host_key_fingerprint,
        model_roots=tuple(host.model_roots),
        vllm_roots=tuple(host.vllm_roots),
        state_root=host.state_root or None,
    )


def keep_plan(built: planned.Plan, *, kind, deployment, revision, host, by: Actor, now: datetime) -> Plan:
    """Write the plan, and hold what it will use. Raises IntegrityError when somebody else took a port just now."""
    plan = Plan.objects.create(
        environment_id=deployment.environment_id,
        deployment=deployment,
        revision=revision,
        host=host,
        kind=kind,
        intent=built.bytes,
        digest=built.digest,
        preconditions=[asdict(condition) for condition in built.preconditions],
        display={"notes": [asdict(n) for n in built.notes], "memory": [asdict(bar) for bar in built.memory]},
        author=by.label,
        created_at=now,
        expires_at=now + PLAN_LIFETIME,
    )
    for launch in built.launches:
        reserve(plan, launch, now=now)
    record(
        actor=by,
        action="plan.make",
        subject=deployment,
        after={"plan": plan.pk, "kind": str(kind.value), "digest": plan.digest, "revision": revision.number},
    )
    announce(f"deployment.{deployment.pk}")
    return plan


def reserve(plan: Plan, launch: Mapping[str, Any], *, now: datetime) -> None:
    """The rows of one planned launch: itself, its ranks, its port, its bytes."""
    instance, _created = Instance.objects.get_or_create(
        deployment=plan.deployment,
        slot=launch["instance"]["slot"],
        defaults={"name": launch["instance"]["name"]},
    )
    row = Launch.objects.create(
        id=launch["launch_id"],
        environment_id=plan.environment_id,
        deployment=plan.deployment,
        instance=instance,
        revision=plan.revision,
        plan=plan,
        host=plan.host,
        address=launch["address"],
        port=launch["port"],
        served_name=launch["served_name"],
        argv=list(launch["argv"]),
        compile_key=launch["compile_key"],
        replaces_id=launch.get("replaces"),
        created_at=now,
    )
    LogStream.objects.create(launch=row)
    held = held_before(row)
    if held.port != row.port:
        PortReservation.objects.create(host=plan.host, port=row.port, launch=row, since=now)
    devices = {device.uuid: device for device in plan.host.devices.filter(uuid__in=launch["devices"])}
    tensor_parallel = spec_of(plan.revision).tensor_parallel
    for position, uuid in enumerate(launch["devices"]):
        Rank.objects.create(
            launch=row,
            host=plan.host,
            device=devices[uuid],
            pipeline_rank=position // tensor_parallel,
            tensor_rank=position % tensor_parallel,
            role="head" if position == 0 else "follower",
            address=row.address,
        )
    for uuid, size in launch["reserved_bytes"].items():
        more = max(0, size - held.bytes.get(uuid, 0))
        Reservation.objects.create(device=devices[uuid], launch=row, bytes=more, since=now)


@dataclass(frozen=True)
class Held:
    """What the launch before this one in its slot holds until it ends: a port, and bytes per device uuid."""

    port: int | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)


def held_before(launch: Launch) -> Held:
    """What need not be held twice: it passes to this launch when that one ends."""
    if launch.replaces is None:
        return Held()
    held = ledger.running_instance(launch.replaces)
    return Held(port=held.port, bytes=held.reserved)


def drop_open_plans(deployment: Deployment, *, by: Actor, now: datetime) -> None:
    """A new plan replaces the deployment's open one, and what that held is free again."""
    for plan in Plan.objects.filter(deployment=deployment, state=Plan.State.OPEN):
        drop_plan(plan=plan, by=by, now=now)


@transaction.atomic
def drop_plan(*, plan: Plan, by: Actor, now: datetime, state=Plan.State.DROPPED) -> None:
    """Give a plan up that nobody started; its reservations end."""
    if not Plan.objects.filter(pk=plan.pk, state=Plan.State.OPEN).update(state=state):
        return
    for launch in plan.launches.filter(state=LaunchState.PLANNED):
        move_launch(
            launch, to=LaunchState.STOPPED, actor=by.label, now=now, reason={"code": "PLAN_DROPPED"}, ended_at=now
        )
        ledger.release(launch, now=now)
    record(actor=by, action="plan.drop", subject=plan.deployment, before={"plan": plan.pk, "digest": plan.digest})
    announce(f"deployment.{plan.deployment_id}")


def expire_plans(*, by: Actor) -> int:
    """Free what plans hold that nobody started in time."""
    now = timezone.now()
    due = list(Plan.objects.filter(state=Plan.State.OPEN, expires_at__lt=now))
    for plan in due:
        drop_plan(plan=plan, by=by, now=now, state=Plan.State.EXPIRED)
    return len(due)
