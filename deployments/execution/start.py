"""Starting one instance: ask the host, follow its log to the end of the start, and let it prove that it serves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.execution.clock import Clock
from deployments.execution.ending import Ending, request_change
from deployments.execution.limits import Limits
from deployments.execution.listener import Listener
from deployments.execution.outcomes import Cancelled, Done, Failed, Outcome, PreconditionFailed, Survives
from deployments.execution.session import Session
from deployments.planning.failure import Cause, explain_failure
from deployments.planning.phases import Progress, advance
from deployments.planning.preconditions import Broken
from deployments.planning.readiness import Degraded, NotReady, Verdict, expectation_of, judge_readiness
from hosts.agent_session import AgentRefused

# Refusals of the agent that mean: what the plan presupposes does not hold any more.
PRECONDITIONS = frozenset(
    {
        "PORT_TAKEN",
        "SLOT_BUSY",
        "EXECUTABLE_MISSING",
        "MODEL_MISSING",
        "MODEL_UNREADABLE",
        "DISK_FULL",
        "DEVICE_FULL",
        "LOGOUT_KILLS",
        "PATH_OUTSIDE_ROOTS",
        "STATE_ROOT_NOT_LOCAL",
        "STATE_ROOT_NOT_OURS",
    }
)
# Refusals that say nothing of the launch: an earlier request for it may still be under way there.
PASSING = frozenset({"LOCKED", "TOO_MANY_REQUESTS"})
# Less than this would not even hold the log of one start (bytes).
LEAST_FREE_DISK = 256 * 1024 * 1024
MOST_LOG_FOR_CAUSE = 2 * 1024 * 1024


@dataclass(frozen=True)
class Resume:
    """Where an earlier worker had got to: bytes of the log read, what they told, and the end if it came to that.

    `begun`: it asked the host for a start or a stop, and has not seen the end of that.
    """

    offset: int = 0
    progress: Progress = field(default_factory=Progress)
    ended: Outcome | None = None
    begun: bool = False


@dataclass(frozen=True)
class Roots:
    """Directories of the host below which models and vLLM may lie; an administrator sets them."""

    model: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()


class StartOne:
    """One launch of a plan. Idempotent on the host by its launch id: begun again, it adopts what runs."""

    def __init__(
        self,
        *,
        session: Session,
        launch: Mapping[str, Any],
        fence: Mapping[str, Any],
        secrets: Mapping[str, str],
        listener: Listener,
        clock: Clock,
        limits: Limits,
        resume: Resume,
        roots: Roots,
        gate: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.launch = launch
        self.id: str = launch["launch_id"]
        self.fence = fence
        self.secrets = secrets
        self.listener = listener
        self.clock = clock
        self.limits = limits
        self.roots = roots
        self.gate = gate
        self.gate_passed = False
        self.ending = Ending(session=session, fence=fence, listener=listener, clock=clock, limits=limits)
        self.offset = resume.offset
        self.progress = resume.progress

    def run(self) -> Outcome:
        refused = self.ask_to_launch()
        if refused is not None:
            return refused
        ended = None if self.progress.listening else self.follow_log()
        if ended is not None:
            return ended
        return self.verify()

    def not_begun(self, broken: Broken) -> PreconditionFailed:
        """A precondition does not hold: the host is not even asked."""
        self.listener.launching(self.id)
        self.listener.failed(
            self.id, cause_without_log(broken.code, broken.message, broken.next_step), {"processes": []}
        )
        return PreconditionFailed(
            code=broken.code,
            message=broken.message,
            next_step=broken.next_step,
            wanted=broken.wanted,
            found=broken.found,
        )

    def ask_to_launch(self) -> Outcome | None:
        self.listener.launching(self.id)
        try:
            started = request_change(
                self.session, "launch", self.launch_args(), fence=self.fence, timeout=self.limits.launch
            )
        except AgentRefused as refusal:
            if refusal.code == "LAUNCH_CLOSED":
                # It ran and ended while nobody looked: its log says why.
                return self.fail_from_log()
            if refusal.code in PASSING:
                raise
            return self.refused(refusal)
        self.listener.launched(self.id, started)
        return None

    def launch_args(self) -> dict[str, Any]:
        return {
            "launch_id": self.id,
            "instance": self.launch["instance"]["name"],
            "slot": self.launch["slot_key"],
            "argv": list(self.launch["argv"]),
            "env": dict(self.launch["env"]),
            "secret_env": dict(self.secrets),
            "cwd": None,
            "address": self.launch["address"],
            "port": self.launch["port"],
            "devices": list(self.launch["devices"]),
            "reserved_bytes": dict(self.launch["reserved_bytes"]),
            "model_path": self.launch["model_path"],
            "min_free_disk": LEAST_FREE_DISK,
            "model_roots": list(self.roots.model),
            "vllm_roots": list(self.roots.vllm),
        }

    def refused(self, refusal: AgentRefused) -> Outcome:
        """The host said no before anything ran: the launch ends with that as its cause."""
        cause = cause_without_log(refusal.code, refusal.message, refusal.next_step)
        self.listener.failed(self.id, cause, {"processes": []})
        if refusal.code in PRECONDITIONS:
            return PreconditionFailed(
                code=refusal.code,
                message=refusal.message,
                next_step=refusal.next_step,
                wanted=str(refusal.numbers.get("wanted", self.wanted(refusal.code))),
                found=str(refusal.numbers.get("found", refusal.message)),
            )
        return Failed(refusal.code, refusal.message, refusal.next_step, refusal.numbers)

    def wanted(self, code: str) -> str:
        return {
            "PORT_TAKEN": f"port {self.launch['port']} free",
            "MODEL_MISSING": str(self.launch["model_path"]),
            "MODEL_UNREADABLE": f"{self.launch['model_path']} readable",
            "EXECUTABLE_MISSING": str(self.launch["executable"]),
        }.get(code, "as planned")

    def follow_log(self) -> Outcome | None:
        """Read until the server listens (None), or tell how the start ended instead.

        When its engine is ready, the gate is passed: nothing that others do disturbs it any more.
        """
        began = last_line = phase_began = self.clock.monotonic()
        stream = self.session.stream("tail", {"launch_id": self.id, "offset": self.offset, "follow": True})
        for event in stream.ticks(self.limits.tick):
            now = self.clock.monotonic()
            if self.listener.cancelled():
                stream.cancel()
                return self.give_up()
            if event is not None:
                last_line = now
                before = self.progress.phase
                self.take(event)
                self.pass_gate()
                phase_began = phase_began if self.progress.phase is before else now
            if self.progress.listening:
                stream.cancel()
                return None
            late = self.find_late(began=now - began, quiet=now - last_line, phase=now - phase_began)
            if late is not None:
                stream.cancel()
                return self.time_out(late)
        return self.fail_from_log()

    def pass_gate(self) -> None:
        """Once the engine is ready, those that wait for it may begin."""
        if self.progress.engine_ready and not self.gate_passed:
            self.gate_passed = True
            self.gate()

    def take(self, event: Mapping[str, Any]) -> None:
        """One piece of the log: kept, and read for phases.

        Where a later worker may read on is told only with the whole piece: what stands between two phases of one piece
        would be lost to it, were the piece's end told with the first of them.
        """
        text: str = event["text"]
        self.listener.log(self.id, offset=event["offset"], next_offset=event["next"], text=text)
        self.offset = event["next"]
        before = seen = self.progress
        for line in text.split("\n"):
            if not line:
                continue
            self.progress = advance(self.progress, line)
            # A phase is told when its line is read, even where several come in one piece: each leaves its moment.
            if self.progress.phase is not seen.phase:
                seen = self.progress
                self.listener.phase_seen(self.id, seen)
        if replace(before, lines=0) != replace(self.progress, lines=0):
            self.listener.progress(self.id, self.progress, offset=self.offset)

    def verify(self) -> Outcome:
        """Ask the model itself; a port that answers is no proof."""
        self.listener.verifying(self.id)
        probe, verdict = self.probe_once()
        for _ in range(self.limits.probe_attempts - 1):
            if not isinstance(verdict, NotReady) or self.listener.cancelled():
                break
            self.clock.sleep(self.limits.probe_pause)
            probe, verdict = self.probe_once()
        status = self.session.request("status", {"launch_id": self.id}, timeout=self.limits.launch)
        if status["state"] != "running":
            return self.fail_from_log()
        if isinstance(verdict, NotReady) and self.listener.cancelled():
            return self.give_up()
        self.listener.verified(self.id, verdict, probe, status)
        # One that lives and does not serve as planned is no success, and nothing for a restart to go on from.
        if isinstance(verdict, Degraded):
            return Failed(verdict.code, verdict.sentence, verdict.next_step, verdict.numbers)
        if isinstance(verdict, NotReady):
            return Failed(verdict.code, verdict.sentence, "Read its log; stop it if it does not come to itself.")
        return Done({"verdict": verdict.code})

    def probe_once(self) -> tuple[Mapping[str, Any], Verdict]:
        probe = self.session.request(
            "probe",
            {
                "address": self.launch["address"],
                "port": self.launch["port"],
                "served_name": self.launch["served_name"],
                "task": self.launch["task"],
                "deadline_s": self.limits.probe,
                "api_key": self.secrets.get("VLLM_API_KEY"),
            },
            timeout=self.limits.probe * 2,
        )
        return probe, judge_readiness(
            probe=probe, expected=expectation_of(self.launch), progress=self.progress, process_alive=True
        )

    def fail_from_log(self) -> Outcome:
        """The process is gone: why, from its own log and exit."""
        status = self.session.request("status", {"launch_id": self.id}, timeout=self.limits.launch)
        cause = self.explain(status)
        self.listener.failed(self.id, cause, status)
        return Failed(cause.code, cause.sentence, cause.next_step, {"evidence": cause.evidence_line})

    def explain(self, status: Mapping[str, Any]) -> Cause:
        lines: list[str] = []
        stream = self.session.stream(
            "tail", {"launch_id": self.id, "offset": 0, "follow": False, "max_bytes": MOST_LOG_FOR_CAUSE}
        )
        for event in stream.ticks(self.limits.launch):
            if event is not None:
                if event["offset"] >= self.offset:
                    self.listener.log(self.id, offset=event["offset"], next_offset=event["next"], text=event["text"])
                lines.extend(event["text"].splitlines())
        return explain_failure(lines=lines, exit_code=status.get("exit_code"), exit_signal=status.get("exit_signal"))

    def find_late(self, *, began: float, quiet: float, phase: float) -> str | None:
        """Which of our deadlines has passed, as a sentence; all are seconds."""
        label = self.progress.label
        weights = self.launch.get("memory", {}).get("weights", 0) * len(self.launch["devices"])
        if phase > self.limits.of_phase(self.progress.phase, weights=weights):
            return f"It stayed in one phase for {phase:.0f} s: {label}."
        if began > self.limits.start:
            return f"Not ready after {began:.0f} s; the last phase was: {label}."
        if quiet > self.limits.quiet:
            return f"Its log said nothing for {quiet:.0f} s; the last phase was: {label}."
        return None

    def time_out(self, late: str) -> Outcome:
        """Over a deadline of ours: stopped, with the phase it hung in."""
        cause = cause_without_log(
            "START_TIMED_OUT",
            late,
            "Read the last lines of its log. Where the phase is legitimately slow, raise the deadline.",
        )
        self.stop()
        status = self.session.request("status", {"launch_id": self.id}, timeout=self.limits.launch)
        self.listener.failed(self.id, cause, status)
        return Failed(cause.code, cause.sentence, cause.next_step)

    def give_up(self) -> Outcome:
        self.listener.stopping(self.id)
        try:
            report = self.stop()
        except AgentRefused as refusal:
            return Survives(refusal.code, refusal.message, refusal.next_step, refusal.numbers)
        self.listener.stopped(self.id, report)
        return Cancelled()

    def stop(self) -> Mapping[str, Any]:
        return self.ending.end(self.id, slot=self.launch["slot_key"], reason="start given up")


def cause_without_log(code: str, sentence: str, next_step: str) -> Cause:
    return Cause(code=code, sentence=sentence, next_step=next_step, evidence_line=None, line_number=None)
