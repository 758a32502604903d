"""What the watcher saw, compared with what is believed; the belief gives way, and every change names its reason."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from accounts.actors import system_actor
from audit.record import record
from deployments import ledger
from deployments.log_store import read_lines
from deployments.models import Launch, LogStream, Run
from deployments.planning.failure import Cause, explain_failure
from deployments.planning.states import LAUNCH_ACTIVE, RUN_ACTIVE, LaunchState
from deployments.services.listening import record_failure
from deployments.transitions import move_launch
from hosts.live import announce
from hosts.models import Host

WATCHER = system_actor("watcher")
LINES_FOR_CAUSE = 20_000
# A launch this young may be missing from an observation that was made before it.
YOUNG_SECONDS = 15
View = Mapping[str, Any]


def apply_observation(
    *, host: Host, boot_id: str, views: Sequence[View], controller: str, now: datetime, fresh: bool = True
) -> None:
    """Bring the launches of this host in line with what was seen; `fresh` says whether it was seen just now.

    Launches of an active run are its worker's business.
    """
    seen = {view["launch_id"]: view for view in views if view["controller"] == controller}
    for launch in unattended(host):
        view = seen.get(str(launch.pk))
        if view is None:
            judge_missing(launch, boot_id=boot_id, now=now)
            continue
        judge(launch, view, now=now)
        if fresh:
            note(launch, view, now=now)


# What a run is doing something with; the other launches of its deployment are looked after as ever.
IN_WORK = [state.value for state in (LaunchState.LAUNCHING, LaunchState.STARTING, LaunchState.STOPPING)]


def unattended(host: Host) -> QuerySet[Launch]:
    """Launches that hold something on this host and that no run is working on."""
    active = Run.objects.filter(state__in=[state.value for state in RUN_ACTIVE])
    return (
        ledger.holding(Launch.objects.filter(host=host))
        .exclude(state=LaunchState.PLANNED)
        .exclude(state__in=IN_WORK, deployment__runs__in=active)
        .select_related("instance", "environment", "host", "plan")
    )


def judge(launch: Launch, view: View, *, now: datetime) -> None:
    """What a launch that the host knows turns out to be. One that runs unattended is looked at by adopting.py."""
    if view["state"] == "orphaned":
        found_orphaned(launch, view, now=now)
    elif view["state"] == "exited" and launch.state in (LaunchState.FAILED, LaunchState.ORPHANED):
        found_empty(launch, view, now=now)
    elif view["state"] == "exited" and launch.state == LaunchState.STOPPING:
        found_stopped(launch, view, now=now)
    elif view["state"] == "exited":
        found_exited(launch, view, now=now)
    elif launch.state == LaunchState.STOPPING:
        record_failure(launch, cause=STOP_NOT_FINISHED, status=view, by=WATCHER, believed=launch.state, now=now)


STOP_NOT_FINISHED = Cause(
    code="STOP_NOT_FINISHED",
    sentence="Its stop was begun and not finished; its processes live.",
    next_step="Plan the stop once more.",
    evidence_line=None,
    line_number=None,
)


def found_stopped(launch: Launch, view: View, *, now: datetime) -> None:
    """The stop was carried out on the host although its worker could not hear the end of it."""
    moved = move_launch(
        launch,
        to=LaunchState.STOPPED,
        actor=WATCHER.label,
        now=now,
        believed=launch.state,
        reason={"code": "STOP_SEEN_LATER", "sentence": "The watcher saw that its stop had been carried out."},
        exit_code=view.get("exit_code"),
        exit_signal=view.get("exit_signal"),
        ended_at=now,
    )
    if moved:
        ledger.release(launch, now=now)


def note(launch: Launch, view: View, *, now: datetime) -> None:
    """Keep what was seen: processes and the device memory each launch really holds."""
    measured: dict[str, int] = {}
    for process in view["processes"]:
        for uuid, size in (process.get("device_memory") or {}).items():
            measured[uuid] = measured.get(uuid, 0) + size
    with transaction.atomic():
        Launch.objects.filter(pk=launch.pk).update(
            processes=view["processes"],
            left_alone=view.get("left_alone") or [],
            observed_at=now,
            **({"measured": measured} if measured else {}),
        )
        announce(f"launch.{launch.pk}")


def still_as_seen(*, launch_ids: Collection[str], sample: Mapping[str, Any], now: datetime) -> None:
    """These were not seen to change; the sample tells the memory they hold now."""
    active = [state.value for state in LAUNCH_ACTIVE]
    for launch in Launch.objects.filter(pk__in=launch_ids, state__in=active, observed_at__isnull=False):
        measured = measure(launch, sample)
        Launch.objects.filter(pk=launch.pk).update(observed_at=now, **({"measured": measured} if measured else {}))


def measure(launch: Launch, sample: Mapping[str, Any]) -> dict[str, int]:
    """Bytes per device that the launch's processes hold, as far as the machine says."""
    pids = {process["pid"] for process in launch.processes}
    measured: dict[str, int] = {}
    for device in sample.get("devices", []):
        used = [item["used"] for item in device["processes"] if item["pid"] in pids and item["used"] is not None]
        if used:
            measured[device["uuid"]] = sum(used)
    return measured


def found_orphaned(launch: Launch, view: View, *, now: datetime) -> None:
    """The API server is gone, others of the launch live on and keep their memory."""
    left = [process for process in view["processes"] if process["role"] not in ("supervisor", "resource_tracker")]
    with transaction.atomic():
        moved = move_launch(
            launch,
            to=LaunchState.ORPHANED,
            actor=WATCHER.label,
            now=now,
            believed=launch.state,
            reason={
                "code": "LEADER_GONE",
                "sentence": f"The API server is gone; {len(left)} of its processes live on and keep their memory.",
            },
            exit_code=view.get("exit_code"),
            exit_signal=view.get("exit_signal"),
            # With the state, not after it: a sweep may be planned from this at once, and touches what it names alone.
            processes=view["processes"],
            left_alone=view.get("left_alone") or [],
            observed_at=now,
        )
        if moved:
            record(actor=WATCHER, action="launch.orphaned", subject=launch, after={"processes": len(left)})


def found_exited(launch: Launch, view: View, *, now: datetime) -> None:
    """It started or served, and ended unasked: its own log says why (exit code 0 is no excuse)."""
    record_failure(launch, cause=explain(launch, view), status=view, by=WATCHER, believed=launch.state, now=now)


def found_empty(launch: Launch, view: View, *, now: datetime) -> None:
    """Nothing of it is left, and what it held is free. An orphan that ended unasked failed, as its log says:
    in a crash the leader is often seen to go a moment before the others.
    """
    with transaction.atomic():
        ledger.release(launch, now=now)
        # What is gone holds nothing any more: its host's bars count these as ours.
        Launch.objects.filter(pk=launch.pk).update(processes=view["processes"], observed_at=now)
    if launch.state == LaunchState.ORPHANED:
        found_exited(launch, view, now=now)


def judge_missing(launch: Launch, *, boot_id: str, now: datetime) -> None:
    """The host does not know the launch: it never came to that, the host was started anew, or its state was removed."""
    began = launch.launched_at or launch.created_at
    if (now - began).total_seconds() < YOUNG_SECONDS:
        return
    if launch.state == LaunchState.FAILED:
        Launch.objects.filter(pk=launch.pk).update(processes=[], observed_at=now)
        ledger.release(launch, now=now)
        return
    if launch.state == LaunchState.STOPPING:
        found_stopped(launch, {}, now=now)
        return
    if launch.launched_at is None:
        record_failure(
            launch, cause=NEVER_STARTED, status={"processes": []}, by=WATCHER, believed=launch.state, now=now
        )
        return
    rebooted = bool(launch.boot_id) and launch.boot_id != boot_id
    cause = Cause(
        code="HOST_REBOOTED" if rebooted else "LAUNCH_UNKNOWN_ON_HOST",
        sentence="The host was started anew since this launch."
        if rebooted
        else "The host has no record of this launch.",
        next_step="Start the deployment again." if rebooted else "Look who cleared the agent's state directory there.",
        evidence_line=None,
        line_number=None,
    )
    record_failure(launch, cause=cause, status={"processes": []}, by=WATCHER, believed=launch.state, now=now)


NEVER_STARTED = Cause(
    code="NEVER_STARTED",
    sentence="The host was asked to start it, and has no record of that.",
    next_step="Plan the start again.",
    evidence_line=None,
    line_number=None,
)


def explain(launch: Launch, view: View) -> Cause:
    stream = LogStream.objects.get(launch=launch)
    first = max(1, stream.lines - LINES_FOR_CAUSE + 1)
    lines = [line for _, line in read_lines(stream, first=first, limit=LINES_FOR_CAUSE)]
    return explain_failure(lines=lines, exit_code=view.get("exit_code"), exit_signal=view.get("exit_signal"))
