"""Carries out a stored plan. It never plans again: what the plan presupposes is checked, and if it does not hold, it stops."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deployments.execution.clock import Clock
from deployments.execution.ending import Ending
from deployments.execution.limits import Limits
from deployments.execution.listener import Listener
from deployments.execution.outcomes import Cancelled, Done, Failed, Outcome, PreconditionFailed, Survives
from deployments.execution.session import Session
from deployments.execution.side_by_side import ENDS, Shared, SideBySide, Work
from deployments.execution.start import Resume, Roots, StartOne
from deployments.execution.stop import StopOne
from deployments.planning.preconditions import Broken, Seen, find_broken
from deployments.planning.retries import following_try, second_try
from hosts.facts.model import CPU_DEVICE

Intent = Mapping[str, Any]
# Stops ask little of a host: the agent waits for processes to end.
MOST_STOPS = 16
FROM_THE_BEGINNING = Resume()


class Engine:
    """One run of one plan on one host."""

    def __init__(
        self,
        *,
        session: Session,
        intent: Intent,
        preconditions: Sequence[Mapping[str, Any]],
        fence: Mapping[str, Any],
        listener: Listener,
        clock: Clock,
        limits: Limits,
        facts_age_s: int,
        roots: Roots,
        secrets_of: Callable[[Mapping[str, Any]], Mapping[str, str]],
        resume_of: Callable[[str], Resume],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self.intent = intent
        self.preconditions = preconditions
        self.fence = fence
        self.listener: Listener = Shared(listener, is_broken=self.is_broken)
        self.clock = clock
        self.limits = limits
        self.facts_age_s = facts_age_s
        self.roots = roots
        self.secrets_of = secrets_of
        self.resume_of = resume_of
        self.leave = leave
        self.side_by_side: SideBySide | None = None
        self.ending = Ending(session=session, fence=fence, listener=self.listener, clock=clock, limits=limits)
        self.slots = {entry["launch_id"]: entry["slot_key"] for entry in (*intent["stops"], *intent["launches"])}

    def is_broken(self) -> bool:
        return self.side_by_side is not None and self.side_by_side.error is not None

    def run(self) -> Outcome:
        """Stops first, then starts in the plan's order. One failed instance does not keep the others from starting;
        in a restart each stop goes with its start, and a failed one ends it.
        """
        broken = self.check_host()
        if broken is not None:
            return broken
        if self.intent["kind"] == "restart":
            return self.run_restart()
        outcome = self.run_stops()
        if not isinstance(outcome, Done) or not self.intent["launches"]:
            return outcome
        return self.run_starts()

    def check_host(self) -> PreconditionFailed | None:
        """The machine is the one the plan was made for."""
        wanted = self.intent["host"]["machine_id"]
        if self.session.machine_id == wanted:
            return None
        return PreconditionFailed(
            code="MACHINE_CHANGED",
            message="Another machine answers at this host's address than the plan was made for.",
            next_step="Check the address of the host; nothing was done.",
            wanted=wanted,
            found=self.session.machine_id,
        )

    def run_stops(self) -> Outcome:
        """All side by side: one that does not die keeps no other from ending."""
        stops = [stop["launch_id"] for stop in self.intent["stops"]]
        outcomes = self.carry_out(stops, lambda launch_id, _gate: self.stop_one(launch_id), after={}, room=MOST_STOPS)
        if len(outcomes) < len(stops):
            outcomes = {**outcomes, **self.end_begun(stops=set(stops) - set(outcomes), launches=())}
        return first_bad(outcomes.values()) or (Done() if len(outcomes) == len(stops) else Cancelled())

    def run_restart(self) -> Outcome:
        """One takes the place of another; the next begins when it serves, and nothing more once one does not."""
        launches = {launch["launch_id"]: launch for launch in self.intent["launches"]}
        order = self.intent["order"]
        outcomes = self.carry_out(
            list(launches),
            lambda launch_id, _gate: self.replace_one(launches[launch_id]),
            after=order["after"],
            room=order["side_by_side"],
            ends=(*ENDS, Failed),
        )
        if self.listener.cancelled():
            rest = [launch for launch in launches.values() if launch["launch_id"] not in outcomes]
            ended = self.end_begun(stops={launch["replaces"] for launch in rest}, launches=rest)
            survivor = first_bad(ended.values(), kinds=(Failed,))
            if survivor is not None:
                return survivor
        return sum_up_restart(outcomes, total=len(launches))

    def replace_one(self, launch: Mapping[str, Any]) -> Outcome:
        ended = self.stop_one(launch["replaces"])
        if not isinstance(ended, Done):
            return ended
        return Cancelled() if self.listener.cancelled() else self.start_one(launch, lambda: None)

    def carry_out(
        self,
        launch_ids: Sequence[str],
        work: Work,
        *,
        after: Mapping[str, Sequence[str]],
        room: int,
        ends: tuple[type[Outcome], ...] = ENDS,
        cancelled: Callable[[], bool] | None = None,
    ) -> Mapping[str, Outcome]:
        self.side_by_side = SideBySide(
            work=work,
            after=after,
            room=room,
            cancelled=cancelled or self.listener.cancelled,
            tick=self.limits.tick,
            leave=self.leave,
            ends=ends,
        )
        return self.side_by_side.run(launch_ids)

    def stop_one(self, launch_id: str) -> Outcome:
        return StopOne(
            launch_id=launch_id,
            slot=self.slots[launch_id],
            ending=self.ending,
            observe=self.observe,
            sweep=self.named_of(launch_id) if self.intent["kind"] == "sweep" else None,
        ).run()

    def end_begun(self, *, stops: Iterable[str], launches: Iterable[Mapping[str, Any]]) -> Mapping[str, Outcome]:
        """What earlier workers of this cancelled run asked the host for, without seeing the end of it, is ended now."""
        work = {launch_id: partial(self.stop_one, launch_id) for launch_id in stops if self.resume_of(launch_id).begun}
        for launch in launches:
            tries = [launch, *filter(None, [following_try(launch)])]
            begun = [each for each in tries if self.resume_of(each["launch_id"]).begun]
            work |= {each["launch_id"]: self.start_of(each).give_up for each in begun}
        return self.carry_out(
            list(work),
            lambda launch_id, _gate: work[launch_id](),
            after={},
            room=MOST_STOPS,
            ends=(),
            cancelled=self.stay_alive,
        )

    def stay_alive(self) -> bool:
        """Keep the lease, in work that a cancel does not end."""
        self.listener.cancelled()
        return False

    def named_of(self, launch_id: str) -> dict[str, Any]:
        """The processes that the plan named; a plan stored before plans did so names none."""
        stops = [stop for stop in self.intent["stops"] if stop["launch_id"] == launch_id]
        return {"processes": stops[0]["processes"]} if stops and "processes" in stops[0] else {}

    def run_starts(self) -> Outcome:
        launches = {launch["launch_id"]: launch for launch in self.intent["launches"]}
        order = self.intent["order"]
        outcomes = self.carry_out(
            list(launches),
            lambda launch_id, gate: self.start_one(launches[launch_id], gate),
            after=order["after"],
            room=order["side_by_side"],
        )
        if self.listener.cancelled():
            rest = [launch for launch in launches.values() if launch["launch_id"] not in outcomes]
            outcomes = {**self.end_begun(stops=(), launches=rest), **outcomes}
        survivor = first_bad(outcomes.values(), kinds=(Survives,))
        ended = survivor or first_bad(outcomes.values(), kinds=(PreconditionFailed, Cancelled))
        if ended is not None:
            return ended
        if len(outcomes) < len(launches):
            return Cancelled()
        failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failed)]
        return self.sum_up(failures, total=len(launches))

    def start_one(self, launch: Mapping[str, Any], gate: Callable[[], None]) -> Outcome:
        resume = self.resume_of(launch["launch_id"])
        if resume.ended is not None:
            # It ended under an earlier worker, and what it held was given back: it never starts again.
            return self.try_again(launch, gate, resume.ended)
        start = self.start_of(launch, resume=resume, gate=gate)
        broken = None if self.runs_already(launch) else self.find_broken(launch)
        return self.try_again(launch, gate, start.run() if broken is None else start.not_begun(broken))

    def start_of(
        self, launch: Mapping[str, Any], *, resume: Resume = FROM_THE_BEGINNING, gate: Callable[[], None] = lambda: None
    ) -> StartOne:
        return StartOne(
            session=self.session,
            launch=launch,
            fence=self.fence,
            secrets=self.secrets_of(launch),
            listener=self.listener,
            clock=self.clock,
            limits=self.limits,
            resume=resume,
            roots=self.roots,
            gate=gate,
        )

    def try_again(self, launch: Mapping[str, Any], gate: Callable[[], None], outcome: Outcome) -> Outcome:
        """Once more under the plan's second id, where the failure is one that a second try may not meet."""
        again = second_try(launch, code=outcome.code) if isinstance(outcome, Failed) else None
        return outcome if again is None or self.listener.cancelled() else self.start_one(again, gate)

    def runs_already(self, launch: Mapping[str, Any]) -> bool:
        """A worker before this one started it: what it uses now is not missing, it is ours."""
        return any(view["launch_id"] == launch["launch_id"] for view in self.observe()["launches"])

    def observe(self) -> Mapping[str, Any]:
        seen = self.session.request("observe", {}, timeout=self.limits.launch)
        self.listener.devices_seen(seen["devices"])
        return seen

    def find_broken(self, launch: Mapping[str, Any]) -> Broken | None:
        """Read the host once more and compare with what the plan presupposes."""
        facts = self.session.request(
            "facts", {"model_roots": [], "vllm_roots": list(self.roots.vllm)}, timeout=self.limits.launch
        )
        versions = {
            str(name): found.get("version")
            for found in facts.get("vllm", [])
            for name in (found.get("executable"), found.get("python"))
        }
        free: dict[str, int | None] = {device["uuid"]: device["free"] for device in self.observe()["devices"]}
        free[CPU_DEVICE] = facts["memory"]["available"]
        seen = Seen(free=free, versions=versions, facts_age_s=self.facts_age_s)
        return find_broken(self.preconditions, launch_id=str(launch["launch_id"]), seen=seen)

    def sum_up(self, failures: Sequence[Failed], *, total: int) -> Outcome:
        if not failures:
            return Done({"started": total})
        first = failures[0]
        if total == 1:
            return first
        return Failed(
            first.code,
            f"{total - len(failures)} of {total} instances serve. The first failure: {first.message}",
            first.next_step,
            {"failed": len(failures), "total": total},
        )


def first_bad(
    outcomes: Iterable[Outcome], *, kinds: tuple[type, ...] = (PreconditionFailed, Failed, Cancelled)
) -> Outcome | None:
    return next((outcome for outcome in outcomes if isinstance(outcome, kinds)), None)


def sum_up_restart(outcomes: Mapping[str, Outcome], *, total: int) -> Outcome:
    """How the restart ended, with how many came through it and how many were not touched."""
    bad = first_bad(outcomes.values())
    if bad is None:
        return Done({"restarted": total}) if len(outcomes) == total else Cancelled()
    if not isinstance(bad, Failed | PreconditionFailed) or total == 1:
        return bad
    good = sum(1 for outcome in outcomes.values() if isinstance(outcome, Done))
    left = total - len(outcomes)
    message = f"{good} of {total} instances were restarted, {left} were left as they are. {bad.message}"
    return replace(bad, message=message)
