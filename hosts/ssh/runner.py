"""The two protocols the rest of the project speaks to; a connection, a simulator and a fake fulfil them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hosts.ssh.command import Command, Result
    from hosts.ssh.endpoint import Endpoint, Limits


class Channel(Protocol):
    """A running command with its stdin and stdout. Sending and receiving may happen in different threads."""

    def send(self, data: bytes) -> None:
        """Write all of `data`. Errors: ConnectionLost, TimedOut."""

    def receive(self, timeout: float) -> bytes:
        """Give what came next, b"" at the end of stdout.

        Errors: TimedOut (`NOTHING_RECEIVED`), ConnectionLost.
        """

    def read_errors(self) -> bytes:
        """Give the last 16 KiB at most of stderr, as far as it has come."""

    def close(self) -> None:
        """End it; may be called twice. The host ends the command, or its stdin closes."""


class Runner(Protocol):
    """A connection to one host. Safe to use from several threads."""

    def run(self, command: Command) -> Result:
        """Run to the end. Errors: TimedOut, ConnectionLost, ChannelRefused."""

    def open(self, command: Command) -> Channel:
        """Start and keep talking to it; `command.stdin` is sent first. Errors: as `run`."""

    def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file whole or not at all. Errors: WriteRefused, and as `run`."""

    def close(self) -> None:
        """End the connection; may be called twice."""


class Connect(Protocol):
    """How a Runner is made."""

    def __call__(self, endpoint: Endpoint, *, limits: Limits) -> Runner:
        """Connect, prove the host key, sign in. Errors: the whole tree of hosts/ssh/errors.py."""
