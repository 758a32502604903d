"""Ending launches, for stops, cancels and deadlines alike: under the fence, heard by a person who loses patience."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deployments.execution.clock import Clock
from deployments.execution.limits import Limits
from deployments.execution.listener import LeaseLost, Listener
from deployments.execution.session import Session
from hosts.agent_session import AgentRefused
from hosts.ssh.errors import TimedOut

# What a stop reports of a launch that the host does not know: nothing of it can live there.
NOTHING_LEFT: Mapping[str, Any] = {"already_gone": True, "signals": [], "survivors": []}


@dataclass(frozen=True)
class Ending:
    """How a run ends launches. `fence`: of this attempt of the run."""

    session: Session
    fence: Mapping[str, Any]
    listener: Listener
    clock: Clock
    limits: Limits

    def end(self, launch_id: str, *, slot: str, reason: str) -> Mapping[str, Any]:
        """End everything of the launch; the agent's report. Errors: AgentRefused STILL_ALIVE where something survives.

        The slot is fenced even where the host knows nothing of the launch, so that a paused worker's request to start it
        comes too late.
        """
        asked = {
            "launch_id": launch_id,
            "slot": slot,
            "grace_s": self.limits.stop_grace,
            "second_term_s": self.limits.second_term,
            "reason": reason,
        }
        try:
            with not_overtaken():
                return self.follow(launch_id, asked)
        except AgentRefused as refusal:
            if refusal.code != "LAUNCH_UNKNOWN":
                raise
            # It never came to its start there, or the host rebooted.
            return NOTHING_LEFT

    def follow(self, launch_id: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        until = self.clock.monotonic() + self.limits.stop
        hurried = False
        stream = self.session.stream("stop", asked, fence=self.fence)
        for _ in stream.ticks(self.limits.tick):
            if not hurried and self.listener.hurried():
                hurried = True
                self.hurry(launch_id)
            if self.clock.monotonic() > until:
                raise TimedOut(
                    "COMMAND_TIMEOUT", program="agent stop", seconds=f"{self.limits.stop:g}", address="the host"
                )
        return stream.result or {}

    def hurry(self, launch_id: str) -> None:
        """Let the host wait for nothing any more in the stop that is under way."""
        self.session.request("hurry", {"launch_id": launch_id}, fence=self.fence, timeout=self.limits.launch)


@contextmanager
def not_overtaken() -> Iterator[None]:
    """The host's word that a later worker has been there means that this one has to leave."""
    try:
        yield
    except AgentRefused as refusal:
        if refusal.code == "STALE_ATTEMPT":
            raise LeaseLost(refusal.message) from refusal
        raise


def request_change(
    session: Session, verb: str, args: Mapping[str, Any], *, fence: Mapping[str, Any], timeout: float
) -> Mapping[str, Any]:
    """Ask for something that changes the host. Errors: LeaseLost when a later worker has asked for this slot already."""
    with not_overtaken():
        return session.request(verb, args, fence=fence, timeout=timeout)
