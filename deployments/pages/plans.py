"""A plan read back from its stored bytes, for people."""

import json
import shlex
from collections import Counter

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deployments.models import Deployment, Launch, Plan
from deployments.pages.deployments import HIDDEN, SEE_VALUES, difference
from deployments.planning.plan import waves_of
from deployments.planning.refusals import RefusalCode, Refused
from deployments.planning.states import LAUNCH_ACTIVE, LaunchState
from deployments.services.revisions import spec_of
from hosts.models import Device
from hosts.pages import memory_bar
from hosts.queries import host_by_name

# With more instances than this, what holds for each of them is folded away.
MOST_UNFOLDED = 4
PRECONDITIONS = {
    "machine_id": gettext_lazy("the machine is the enrolled one"),
    "host_key": gettext_lazy("the host key is the pinned one"),
    "port_free": gettext_lazy("the port is free"),
    "free_bytes": gettext_lazy("so much memory is free"),
    "vllm_version": gettext_lazy("vLLM has this version"),
    "model_present": gettext_lazy("the model is there"),
    "slot_free": gettext_lazy("nothing of ours runs in this slot"),
    "facts_age_s": gettext_lazy("the facts are no older than, in seconds"),
    "launch_known": gettext_lazy("the host knows this launch"),
}


PROOFS = {
    "marker": gettext_lazy("the launch id is in its environment"),
    "leader": gettext_lazy("the recorded process id and start time"),
    "session": gettext_lazy("in the session of the launch, started after its leader"),
}
SPARED = {
    "OTHER_USER": gettext_lazy("it belongs to another user"),
    "OTHER_LAUNCH": gettext_lazy("it carries the id of another launch"),
    "BEFORE_LEADER": gettext_lazy("it is older than the launch"),
    "SESSION_REUSED": gettext_lazy("its session has the number of the launch's, and is another"),
    "NO_PROOF": gettext_lazy("nothing but its title speaks for it"),
}


def plan_page(plan: Plan, user, *, now) -> dict:
    intent = json.loads(bytes(plan.intent))
    launches = intent.get("launches") or []
    stops = intent.get("stops") or []
    names = {str(key): name for key, name in plan.launches.values_list("pk", "instance__name")}
    names |= {str(stop.get("launch_id")): instance_name(stop) for stop in stops}
    devices = {device.uuid: device for device in plan.host.devices.all()}
    values = user.has_perm(SEE_VALUES, plan)
    running = running_revision(plan)
    checked = [shown_precondition(row, names, devices) for row in plan.preconditions]
    fold = len(launches) > MOST_UNFOLDED
    return {
        "plan": plan,
        "intent": intent,
        "open": plan.state == Plan.State.OPEN and plan.expires_at > now,
        "expired": plan.state == Plan.State.EXPIRED or (plan.state == Plan.State.OPEN and plan.expires_at <= now),
        "launches": [shown_launch(launch, devices, values=values) for launch in launches],
        "stops": [{**stop, "name": instance_name(stop)} for stop in stops],
        "swept": swept_processes(stops),
        "left_alone": [
            {**item, "reason": SPARED.get(item["why"], item["why"])} for item in plan.display.get("left_alone") or []
        ],
        "steps": [[names.get(str(key), str(key)) for key in step] for step in waves_of(intent)],
        "bars": [device_bar(bar) for bar in plan.display.get("memory") or []],
        "notes": plan.display.get("notes") or [],
        "preconditions": [row for row in checked if not (fold and row["launch"])],
        "each": [row for row in checked if fold and row["launch"]],
        "running": running,
        "difference": difference(running, plan.revision, user) if running else [],
        "run": getattr(plan, "run", None),
    }


def swept_processes(stops: list[dict]) -> list[dict]:
    """The processes that a sweep may signal, each with its proof in words; empty for other plans."""
    return [
        {**process, "name": instance_name(stop), "reason": PROOFS.get(process["proof"], _("not told"))}
        for stop in stops
        for process in stop.get("processes") or []
    ]


def refused_page(deployment: Deployment, refused: Refused) -> dict:
    """Every reason; with the host, whose facts may be what is too old."""
    revision = deployment.revisions.first()
    host = host_by_name(environment_id=deployment.environment_id, name=spec_of(revision).host) if revision else None
    return {
        "deployment": deployment,
        "reasons": refused.reasons,
        "host": host,
        "stale": any(reason.code == RefusalCode.FACTS_TOO_OLD for reason in refused.reasons),
    }


def running_revision(plan: Plan):
    """Return the revision that runs now, where it is another than the plan's."""
    live = Launch.objects.filter(
        deployment=plan.deployment, state__in=[state.value for state in LAUNCH_ACTIVE - {LaunchState.PLANNED}]
    )
    launch = live.exclude(revision=plan.revision).select_related("revision__deployment").first()
    return launch.revision if launch and plan.kind in (Plan.Kind.START, Plan.Kind.RESTART) else None


def instance_name(entry: dict) -> str:
    instance = entry.get("instance")
    return str(instance.get("name") if isinstance(instance, dict) else instance or entry.get("launch_id"))


def shown_launch(launch: dict, devices: dict[str, Device], *, values: bool) -> dict:
    reserved = launch.get("reserved_bytes") or {}
    return {
        "id": launch.get("launch_id"),
        "name": instance_name(launch),
        "address": launch.get("address"),
        "port": launch.get("port"),
        "served_name": launch.get("served_name"),
        "expected": launch.get("expected") or {},
        "terms": memory_terms(launch.get("memory") or {}),
        "devices": [(devices.get(uuid), uuid, reserved.get(uuid)) for uuid in launch.get("devices") or []],
        "command": command_line(launch.get("argv") or []),
        "environment": shown_environment(launch, values=values),
    }


def memory_terms(memory: dict) -> dict:
    """Term by term what an instance takes on each of its devices, and the range of what it holds once ready."""
    named = {
        "weights": _("weights"),
        "kv_cache": _("KV cache"),
        "activations": _("activations"),
        "runtime": _("runtime"),
        "graphs": _("CUDA graphs"),
    }
    parts = [(label, memory[key]) for key, label in named.items() if memory.get(key)]
    return {
        "parts": parts,
        "total": sum(size for _label, size in parts),
        "low": memory.get("low"),
        "high": memory.get("high"),
        "pinned": memory.get("pinned"),
        "measured": memory.get("measured"),
    }


def command_line(argv: list[str]) -> str:
    """As a shell would take it, one option a line; the host itself gets the list, never this text."""
    lines: list[str] = []
    for word in argv:
        quoted = shlex.quote(str(word))
        if lines and not (str(word).startswith("--")):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)


def shown_environment(launch: dict, *, values: bool) -> list[tuple[str, str, str]]:
    """(name, value, kind) sorted by name; secrets are named, never shown."""
    plain = launch.get("env") or {}
    rows = [(name, str(value) if values else HIDDEN, "") for name, value in sorted(plain.items())]
    secrets = sorted((launch.get("secrets") or {}).items())
    return rows + [(name, _("credential %(name)s") % {"name": credential}, "secret") for name, credential in secrets]


def device_bar(bar: dict) -> dict:
    segments = [(part["kind"], part["bytes"], part["label"]) for part in bar["segments"] if part["kind"] != "free"]
    drawn = memory_bar(bar["total"], segments) if bar["total"] else None
    return {
        "name": bar["name"],
        "device": bar["device"],
        "total": bar["total"],
        "legend": legend(bar["segments"]),
        "bar": drawn,
    }


def legend(segments: list[dict]) -> list[dict]:
    """What the colours of a bar mean: parts of one kind and size are one entry with their number."""
    counts = Counter((part["kind"], part["label"], part["bytes"]) for part in segments)
    return [
        {"kind": kind, "label": label, "bytes": size, "count": count} for (kind, label, size), count in counts.items()
    ]


def shown_precondition(row: dict, names: dict[str, str], devices: dict[str, Device]) -> dict:
    subject = str(row.get("subject", ""))
    device = devices.get(subject)
    shown = device.name if device else names.get(subject, subject)
    launch = names.get(str(row.get("launch_id")))
    return {
        "code": row["code"],
        "words": PRECONDITIONS.get(row["code"], row["code"]),
        "subject": launch if launch and row["code"] in ("slot_free", "launch_known") else shown,
        "launch": launch,
        "wanted": row.get("wanted"),
        "is_bytes": row["code"] == "free_bytes",
    }
