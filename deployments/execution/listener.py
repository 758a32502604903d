"""What the engine tells, and asks, whoever runs it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from deployments.planning.failure import Cause
from deployments.planning.phases import Progress
from deployments.planning.readiness import Verdict


class Listener(Protocol):
    """The engine's counterpart: the worker writes rows, tests keep lists."""

    def launching(self, launch_id: str) -> None:
        """Before the host is asked to start it."""

    def launched(self, launch_id: str, started: Mapping[str, Any]) -> None:
        """The host answered: pid, start time, session id, boot id, log path."""

    def log(self, launch_id: str, *, offset: int, next_offset: int, text: str) -> None:
        """A piece of the log: whole lines, bytes offset…next_offset of the file."""

    def phase_seen(self, launch_id: str, progress: Progress) -> None:
        """The log told a new phase; where it can be read on comes with `progress`."""

    def progress(self, launch_id: str, progress: Progress, *, offset: int) -> None:
        """What the log told up to this byte: from here a later worker reads on."""

    def verifying(self, launch_id: str) -> None:
        """The log says it listens; now the model is asked."""

    def verified(self, launch_id: str, verdict: Verdict, probe: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """What the verification saw."""

    def failed(self, launch_id: str, cause: Cause, status: Mapping[str, Any]) -> None:
        """The instance failed: code, sentence, next step, evidence, exit."""

    def stopping(self, launch_id: str) -> None: ...

    def stopped(self, launch_id: str, report: Mapping[str, Any]) -> None: ...

    def devices_seen(self, devices: Sequence[Mapping[str, Any]]) -> None:
        """What the host's devices were just seen to hold, as its agent's `observe` tells it."""

    def cancelled(self) -> bool:
        """Has somebody asked to stop? Also renews whatever lease there is; raises LeaseLost when it is gone."""

    def hurried(self) -> bool:
        """Whether somebody asked to end by force what is being cancelled."""


class LeaseLost(Exception):
    """Another worker owns the run now: leave at once and touch nothing."""
