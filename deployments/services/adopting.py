"""Launches that run while no run follows them: the worker was lost or the connection broke, and the host went on.

What their log tells is read again; once it says that the server listens, the model is asked, as a run would have done.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from deployments.execution.limits import Limits
from deployments.execution.session import Session
from deployments.log_store import read_lines
from deployments.models import Launch, LogStream
from deployments.planning.phases import Progress, track
from deployments.planning.readiness import expectation_of, judge_readiness
from deployments.planning.retries import planned_launch
from deployments.planning.states import LaunchState
from deployments.services.listening import measured_overhead, progress_row, secrets_for, state_of, verdict_row
from deployments.services.observing import WATCHER, unattended
from deployments.transitions import move_launch
from hosts.models import Host

MOST_LINES = 100_000
BEGUN = [LaunchState.LAUNCHING, LaunchState.STARTING]


def adopt_running(*, host: Host, views: Sequence[Mapping[str, Any]], session: Session, now: datetime) -> None:
    """Take on what was begun on this host, runs there, and is followed by nobody."""
    running = {view["launch_id"]: view for view in views if view["state"] in ("starting", "running")}
    for launch in unattended(host).filter(state__in=[state.value for state in BEGUN]):
        view = running.get(str(launch.pk))
        if view is not None:
            adopt(launch, view, session=session, boot_id=session.boot_id, now=now)


def adopt(launch: Launch, view: Mapping[str, Any], *, session: Session, boot_id: str, now: datetime) -> None:
    if launch.state == LaunchState.LAUNCHING:
        move_launch(
            launch,
            to=LaunchState.STARTING,
            actor=WATCHER.label,
            now=now,
            reason={
                "code": "FOUND_RUNNING",
                "sentence": "The host had started it although its run could not hear that.",
            },
            boot_id=boot_id,
            pid=view["pid"],
            start_time=view["start_time"],
            sid=view["sid"],
            log_path=view["log_path"],
            launched_at=now,
        )
    progress = read_progress(launch)
    if progress.listening:
        verify(launch, view, progress=progress, session=session, now=now)


def read_progress(launch: Launch) -> Progress:
    """What the stored log tells, from its first line."""
    stream = LogStream.objects.get(launch=launch)
    progress = track(line for _, line in read_lines(stream, first=1, limit=MOST_LINES))
    row = {**progress_row(progress, offset=stream.next_offset), "seen": launch.progress.get("seen", [])}
    Launch.objects.filter(pk=launch.pk).update(phase=progress.phase.value, progress=row)
    return progress


def verify(launch: Launch, view: Mapping[str, Any], *, progress: Progress, session: Session, now: datetime) -> None:
    intent = json.loads(bytes(launch.plan.intent))
    planned = planned_launch(intent, str(launch.pk))
    probe = session.request(
        "probe",
        {
            "address": launch.address,
            "port": launch.port,
            "served_name": launch.served_name,
            "task": planned["task"],
            "deadline_s": Limits.probe,
            "api_key": secrets_for(planned).get("VLLM_API_KEY"),
        },
        timeout=Limits.probe * 2,
    )
    verdict = judge_readiness(probe=probe, expected=expectation_of(planned), progress=progress, process_alive=True)
    move_launch(
        launch,
        to=state_of(verdict),
        actor=WATCHER.label,
        now=now,
        reason={"code": verdict.code, "sentence": verdict.sentence},
        verdict=verdict_row(verdict, probe, at=now.isoformat()),
        measured_overhead=measured_overhead(launch, view) if state_of(verdict) is LaunchState.READY else None,
        ready_at=now if state_of(verdict) is LaunchState.READY else None,
        processes=view["processes"],
        observed_at=now,
    )
