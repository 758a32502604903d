"""What the engine tells is written down here, move by move, while it happens."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.actors import Actor, system_actor
from audit.record import record
from deployments import ledger
from deployments.execution.outcomes import Cancelled, Failed, Outcome, PreconditionFailed
from deployments.execution.start import PRECONDITIONS, Resume
from deployments.log_store import Misfit, append_log
from deployments.models import Launch, Run, RunStep
from deployments.planning.failure import Cause
from deployments.planning.phases import Phase, Progress
from deployments.planning.readiness import Degraded, NotReady, Ready, Unverified, Verdict
from deployments.planning.retries import planned_launch, second_try
from deployments.planning.states import LAUNCH_TERMINAL, LaunchState
from deployments.services.plans import reserve
from deployments.transitions import move_launch
from hosts.connections import open_secret
from hosts.live import announce
from hosts.services import keep_uses

WORKER = system_actor("worker")
LEASE_EVERY_SECONDS = 5
# The host was asked, and the end of that has not been seen.
BEGUN = (LaunchState.LAUNCHING, LaunchState.STARTING, LaunchState.STOPPING)


class WorkerListener:
    """The engine's counterpart in the worker."""

    def __init__(self, *, run: Run, renew_lease: Callable[[], None]) -> None:
        self.run = run
        self.renew_lease = renew_lease
        self.renewed_at = None

    def launching(self, launch_id: str) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        self.begin_step("launch", launch.instance.name, launch_id)
        with transaction.atomic():
            moved = move_launch(launch, to=LaunchState.LAUNCHING, actor=WORKER.label, now=now, attempt=self.run.attempt)
            if moved:
                record(actor=WORKER, action="launch.start", subject=launch, after={"run": self.run.pk})

    def launched(self, launch_id: str, started: Mapping[str, Any]) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        move_launch(
            launch,
            to=LaunchState.STARTING,
            actor=WORKER.label,
            now=now,
            boot_id=started["boot_id"],
            pid=started["pid"],
            start_time=started["start_time"],
            sid=started["sid"],
            log_path=started["log_path"],
            launched_at=now,
        )
        self.end_step("launch", launch_id, detail={"pid": started["pid"], "adopted": started["adopted"]})
        self.begin_step("follow_start", launch.instance.name, launch_id)

    def log(self, launch_id: str, *, offset: int, next_offset: int, text: str) -> None:
        with contextlib.suppress(Misfit):
            # The watcher is ahead or will read the gap; what the engine makes of the lines does not depend on it.
            append_log(launch_id=launch_id, offset=offset, next_offset=next_offset, text=text, now=timezone.now())

    def phase_seen(self, launch_id: str, progress: Progress) -> None:
        with transaction.atomic():
            row = Launch.objects.values_list("progress", flat=True).get(pk=launch_id)
            # What pages show goes on; where a later worker reads on, and with what, stays as it is.
            shown = {"percent": progress.percent, "label": progress.label}
            seen = with_phase(row.get("seen", []), progress)
            self.keep_progress(launch_id, progress, {**row, **shown, "seen": seen})

    def progress(self, launch_id: str, progress: Progress, *, offset: int) -> None:
        with transaction.atomic():
            row = Launch.objects.values_list("progress", flat=True).get(pk=launch_id)
            seen = with_phase(row.get("seen", []), progress)
            self.keep_progress(launch_id, progress, {**progress_row(progress, offset=offset), "seen": seen})

    def keep_progress(self, launch_id: str, progress: Progress, row: Mapping[str, Any]) -> None:
        Launch.objects.filter(pk=launch_id).update(phase=progress.phase.value, progress=dict(row))
        announce(f"launch.{launch_id}", f"run.{self.run.pk}", f"deployment.{self.run.deployment_id}")

    def verifying(self, launch_id: str) -> None:
        self.end_step("follow_start", launch_id)
        self.begin_step("verify", self.launch(launch_id).instance.name, launch_id)

    def verified(self, launch_id: str, verdict: Verdict, probe: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        row = verdict_row(verdict, probe, at=now.isoformat())
        move_launch(
            launch,
            to=state_of(verdict),
            actor=WORKER.label,
            now=now,
            reason={"code": verdict.code, "sentence": verdict.sentence},
            verdict=row,
            measured_overhead=measured_overhead(launch, status) if isinstance(verdict, Ready) else None,
            ready_at=now if isinstance(verdict, Ready) else None,
            processes=status.get("processes", []),
            observed_at=now,
        )
        self.end_step(
            "verify",
            launch_id,
            state="failed" if isinstance(verdict, NotReady | Degraded) else "done",
            detail={"code": verdict.code},
        )

    def failed(self, launch_id: str, cause: Cause, status: Mapping[str, Any]) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        with transaction.atomic():
            prepare_second_try(launch, cause=cause, now=now)
            record_failure(launch, cause=cause, status=status, now=now)
            for name in ("launch", "follow_start", "verify"):
                self.end_step(name, launch_id, state="failed", detail={"code": cause.code})

    def stopping(self, launch_id: str) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        self.begin_step("stop", launch.instance.name, launch_id)
        with transaction.atomic():
            if move_launch(launch, to=LaunchState.STOPPING, actor=WORKER.label, now=now):
                record(actor=WORKER, action="launch.stop", subject=launch, after={"run": self.run.pk})

    def stopped(self, launch_id: str, report: Mapping[str, Any]) -> None:
        now = timezone.now()
        launch = self.launch(launch_id)
        with transaction.atomic():
            move_launch(
                launch,
                to=LaunchState.STOPPED,
                actor=WORKER.label,
                now=now,
                ended_at=now,
                exit_code=report.get("exit_code"),
                processes=[],
                observed_at=now,
            )
            ledger.release(launch, now=now)
        self.end_step("stop", launch_id, detail={"signals": report.get("signals", report.get("killed", []))})

    def devices_seen(self, devices: Sequence[Mapping[str, Any]]) -> None:
        """The next plan must not take what has just been stopped for somebody else's."""
        keep_uses(host_id=self.run.plan.host_id, uses=devices, now=timezone.now())

    def cancelled(self) -> bool:
        """Renews the lease now and then, and asks the row whether somebody wants the end."""
        now = timezone.now()
        if self.renewed_at is None or (now - self.renewed_at).total_seconds() > LEASE_EVERY_SECONDS:
            self.renew_lease()
            self.renewed_at = now
        return Run.objects.filter(pk=self.run.pk, cancel_asked_at__isnull=False).exists()

    def hurried(self) -> bool:
        return Run.objects.filter(pk=self.run.pk, force_asked_at__isnull=False).exists()

    def launch(self, launch_id: str) -> Launch:
        return Launch.objects.select_related("instance", "environment", "plan").get(pk=launch_id)

    def begin_step(self, name: str, subject: str, launch_id: str) -> None:
        with transaction.atomic():
            step = RunStep.objects.filter(run=self.run, name=name, detail__launch_id=launch_id).first()
            if step is None:
                RunStep.objects.create(
                    run=self.run,
                    position=RunStep.objects.filter(run=self.run).count() + 1,
                    name=name,
                    subject=subject,
                    state="running",
                    started_at=timezone.now(),
                    detail={"launch_id": launch_id},
                )
            announce(f"run.{self.run.pk}")

    def end_step(self, name: str, launch_id: str, *, state: str = "done", detail: dict | None = None) -> None:
        with transaction.atomic():
            for step in RunStep.objects.filter(run=self.run, name=name, state="running", detail__launch_id=launch_id):
                step.state = state
                step.ended_at = timezone.now()
                step.detail = {**step.detail, **(detail or {})}
                step.save(update_fields=["state", "ended_at", "detail"])
            announce(f"run.{self.run.pk}")


def measured_overhead(launch: Launch, status: Mapping[str, Any]) -> int | None:
    """Bytes that its fullest device holds beside planned weights and KV cache; None where no device tells."""
    held: dict[str, int] = {}
    for process in status.get("processes", []):
        for uuid, size in (process.get("device_memory") or {}).items():
            held[uuid] = held.get(uuid, 0) + (size or 0)
    intent = json.loads(bytes(launch.plan.intent))
    memory = planned_launch(intent, str(launch.pk)).get("memory")
    if memory is None:
        return None
    beside = max(held.values(), default=0) - memory["weights"] - memory["kv_cache"]
    return beside if beside > 0 else None


def prepare_second_try(launch: Launch, *, cause: Cause, now: datetime) -> None:
    """Where the plan has one for this cause: its rows, which take over what the launch gives back when it has ended."""
    intent = json.loads(bytes(launch.plan.intent))
    again = second_try(planned_launch(intent, str(launch.pk)), code=cause.code)
    if again is not None and not Launch.objects.filter(pk=again["launch_id"]).exists():
        reserve(launch.plan, again, now=now)


def state_of(verdict: Verdict) -> LaunchState:
    """A process that lives and does not answer is degraded, not failed: it still holds its memory and must be stopped."""
    states = {Ready: LaunchState.READY, Unverified: LaunchState.UNVERIFIED}
    return states.get(type(verdict), LaunchState.DEGRADED)


@transaction.atomic
def record_failure(
    launch: Launch,
    *,
    cause: Cause,
    status: Mapping[str, Any],
    now: datetime,
    by: Actor = WORKER,
    believed: str | None = None,
) -> bool:
    """The launch ended unasked: FAILED with its cause. What it held is free only when nothing of it lives.

    `believed` as in move_launch: for who looked from outside, while the launch may have gone on.
    """
    alive = [process for process in status.get("processes", []) if process["role"] != "supervisor"]
    moved = move_launch(
        launch,
        to=LaunchState.FAILED,
        actor=by.label,
        now=now,
        believed=believed,
        reason={"code": cause.code, "sentence": cause.sentence},
        cause=cause_row(cause),
        exit_code=status.get("exit_code"),
        exit_signal=status.get("exit_signal"),
        processes=status.get("processes", []),
        ended_at=now,
        observed_at=now,
    )
    if moved:
        record(actor=by, action="launch.failed", subject=launch, after={"code": cause.code})
        if not alive:
            ledger.release(launch, now=now)
    return moved


def cause_row(cause: Cause) -> dict[str, Any]:
    return {
        "code": str(cause.code),
        "sentence": cause.sentence,
        "next_step": cause.next_step,
        "evidence": cause.evidence_line,
        "line": cause.line_number,
    }


def verdict_row(verdict: Verdict, probe: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    return {
        "code": str(verdict.code),
        "sentence": verdict.sentence,
        "next_step": getattr(verdict, "next_step", ""),
        "numbers": dict(verdict.numbers),
        "at": at,
        "probe": {key: probe.get(key) for key in ("health", "models", "answer", "cache_config", "version")},
    }


def with_phase(seen: list[dict[str, str]], progress: Progress) -> list[dict[str, str]]:
    """The phases that were seen, each with the moment when it was seen first."""
    if any(item["phase"] == progress.phase.value for item in seen):
        return seen
    return [*seen, {"phase": progress.phase.value, "label": progress.label, "at": timezone.now().isoformat()}]


def progress_row(progress: Progress, *, offset: int) -> dict[str, Any]:
    return {
        **asdict(progress),
        "phase": progress.phase.value,
        "percent": progress.percent,
        "label": progress.label,
        "offset": offset,
    }


def resume_point(launch_id: str) -> Resume:
    """Where the last worker had got to with this launch; a second try that nothing asked for yet has no row."""
    launch = Launch.objects.filter(pk=launch_id).first()
    if launch is None:
        return Resume()
    if launch.state in LAUNCH_TERMINAL:
        return Resume(ended=ending_of(launch))
    row, begun = launch.progress, launch.state in BEGUN
    if "offset" not in row:
        return Resume(begun=begun)
    known = {field.name for field in fields(Progress)}
    values = {key: value for key, value in row.items() if key in known}
    values["phase"] = Phase(values["phase"])
    return Resume(offset=row["offset"], progress=Progress(**values), begun=begun)


def ending_of(launch: Launch) -> Outcome:
    """How a launch ended that an earlier worker of the same run brought to its end."""
    if launch.state == LaunchState.STOPPED:
        return Cancelled()
    cause = launch.cause or {}
    code, message = cause.get("code", "CAUSE_UNKNOWN"), cause.get("sentence", "It ended, and its log names no cause.")
    next_step = cause.get("next_step", "Read its log.")
    if code in PRECONDITIONS:
        return PreconditionFailed(code=code, message=message, next_step=next_step, wanted="as planned", found=message)
    return Failed(code, message, next_step)


def secrets_for(launch: Mapping[str, Any]) -> dict[str, str]:
    """The values of the secrets that the plan names, opened at the moment of the start."""
    environment_id = Launch.objects.values_list("environment_id", flat=True).get(pk=launch["launch_id"])
    return {
        variable: open_secret(environment_id=environment_id, name=name) for variable, name in launch["secrets"].items()
    }
