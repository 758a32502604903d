"""A scripted Runner for tests: answers what was scripted, records what ran, raises on everything else."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hosts.ssh.command import Command, Result
from hosts.ssh.errors import SshError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class UnscriptedCommandError(AssertionError):
    """A test ran something it had not foreseen."""


def reply(stdout: bytes | str = b"", *, stderr: bytes | str = b"", exit_status: int = 0) -> Result:
    """Make a Result for a script."""
    out = stdout.encode() if isinstance(stdout, str) else stdout
    err = stderr.encode() if isinstance(stderr, str) else stderr
    return Result(exit_status=exit_status, stdout=out, stderr=err, seconds=0.0)


class FakeChannel:
    """A channel whose other side is `peer`: told each piece sent, it gives what to receive (b"" ends)."""

    def __init__(self, peer: Callable[[bytes], Sequence[bytes]], *, first: Sequence[bytes] = ()) -> None:
        self._peer = peer
        self._inbox: queue.Queue[bytes] = queue.Queue()
        self.sent: list[bytes] = []
        self.errors = b""
        self.closed = False
        for piece in first:
            self._inbox.put(piece)

    def push(self, piece: bytes) -> None:
        """Let `piece` arrive unasked."""
        self._inbox.put(piece)

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        for piece in self._peer(data):
            self._inbox.put(piece)

    def receive(self, timeout: float) -> bytes:
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty as error:
            raise TimedOut("NOTHING_RECEIVED", program="fake", address="fake", seconds=f"{timeout:g}") from error

    def read_errors(self) -> bytes:
        return self.errors

    def close(self) -> None:
        self.closed = True
        self._inbox.put(b"")


@dataclass
class FakeRunner:
    """`script` maps argv, or its first words, to a Result, an error to raise, or a FakeChannel for `open`.

    The longest prefix wins. `ran` holds the commands in order, `files` what `put` wrote: path → (content,
    mode).
    """

    script: dict[tuple[str, ...], Result | SshError | FakeChannel] = field(default_factory=dict)
    ran: list[Command] = field(default_factory=list)
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    closed: bool = False

    def run(self, command: Command) -> Result:
        answer = self._find(command)
        if not isinstance(answer, Result):
            raise UnscriptedCommandError(f"scripted for open, not for run: {command.render()}")
        return answer

    def open(self, command: Command) -> FakeChannel:
        answer = self._find(command)
        if not isinstance(answer, FakeChannel):
            raise UnscriptedCommandError(f"scripted for run, not for open: {command.render()}")
        return answer

    def put(self, path: str, content: bytes, mode: int) -> None:
        self.files[path] = (content, mode)

    def close(self) -> None:
        self.closed = True

    def _find(self, command: Command) -> Result | FakeChannel:
        self.ran.append(command)
        for length in range(len(command.argv), 0, -1):
            answer = self.script.get(command.argv[:length])
            if isinstance(answer, SshError):
                raise answer
            if answer is not None:
                return answer
        raise UnscriptedCommandError(f"not in the script: {command.render()}")
