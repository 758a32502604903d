"""What a verb gets to work with: the machine, the options of this agent and one request."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional

from .arguments import read_integer, read_name
from .refusal import Refusal
from .state_root import StateRoot, open_state_root
from .system import System

_SLICE_S = 0.1


@dataclass(frozen=True)
class Options:
    """How this agent was started. Paths None: the defaults below the user's home."""

    controller: str
    state_root: Optional[str] = None
    log_root: Optional[str] = None
    temp_root: str = "/tmp"  # noqa: S108 - a private directory is made below it; socket paths must be short
    agent_hash: str = "source"


class Cancelled(Exception):
    """Raised inside a stream that was asked to end."""


@dataclass(frozen=True)
class Fence:
    """Who asks for a change.

    `attempt` only grows per controller: a paused worker that wakes up late has a lower one.
    """

    controller: str
    run: str
    attempt: int


@dataclass
class Call:
    """One request. `emit` sends an event's body; it may be called from this request's thread only."""

    system: System
    options: Options
    args: Mapping[str, Any]
    emit: Callable[[Dict[str, Any]], None]
    fence_fields: Optional[Mapping[str, Any]] = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def open_root(self) -> StateRoot:
        """The checked state root; refuses with STATE_ROOT_* or LOG_ROOT_*."""
        return open_state_root(self.system, path=self.options.state_root, log_root=self.options.log_root)

    def sleep(self, seconds: float) -> None:
        """Sleep by the machine's clock; raises Cancelled as soon as the request is cancelled."""
        until = self.system.monotonic() + seconds
        while not self.cancelled.is_set():
            left = until - self.system.monotonic()
            if left <= 0:
                return
            self.system.sleep(min(_SLICE_S, left))
        raise Cancelled

    def read_fence(self) -> Fence:
        """The fence of a changing verb; refuses where it is missing or names another controller."""
        if not isinstance(self.fence_fields, Mapping):
            raise Refusal(
                "FENCE_MISSING",
                "The request changes something and carries no fence.",
                "Send controller, run and attempt.",
            )
        fence = Fence(
            controller=read_name(self.fence_fields, "controller"),
            run=read_name(self.fence_fields, "run"),
            attempt=read_integer(self.fence_fields, "attempt"),
        )
        if fence.controller != self.options.controller:
            raise Refusal(
                "CONTROLLER_MISMATCH",
                f"The fence names controller {fence.controller}, this agent is of {self.options.controller}.",
                "Start an agent for that controller.",
            )
        return fence
