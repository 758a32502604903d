"""A Runner for this machine itself: the same sessions without SSH, where no sshd is to be had.

A program is started as written, without the account's login shell; everything else behaves as over SSH: a
session of its own, stdin closed at the end, nothing signalled but what ran into its time-out.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING

from hosts.ssh.command import Command, Result
from hosts.ssh.errors import ChannelRefused, ConnectionLost, TimedOut
from hosts.ssh.files import put_file

if TYPE_CHECKING:
    from hosts.ssh.runner import Channel

ADDRESS = "this machine"
ERRORS_KEPT = 16 * 1024
OUTPUT_MAX = 8 * 1024 * 1024
CHUNK = 64 * 1024


class LocalRunner:
    """See hosts.ssh.runner.Runner."""

    def run(self, command: Command) -> Result:
        started = time.monotonic()
        with _start(command) as process:
            try:
                out, err = process.communicate(command.stdin, timeout=command.timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                seconds = f"{command.timeout:g}"
                raise TimedOut("COMMAND_TIMEOUT", program=command.argv[0], seconds=seconds, address=ADDRESS) from error
        return Result(
            exit_status=process.returncode if process.returncode >= 0 else None,
            stdout=out[:OUTPUT_MAX],
            stderr=err[:OUTPUT_MAX],
            seconds=time.monotonic() - started,
            truncated=max(len(out), len(err)) > OUTPUT_MAX,
        )

    def open(self, command: Command) -> Channel:
        channel = LocalChannel(_start(command), program=command.argv[0])
        if command.stdin:
            channel.send(command.stdin)
        return channel

    def put(self, path: str, content: bytes, mode: int) -> None:
        put_file(self.run, address=ADDRESS, path=path, content=content, mode=mode)

    def close(self) -> None:
        """Nothing is held between two commands."""


class LocalChannel:
    """See hosts.ssh.runner.Channel."""

    def __init__(self, process: subprocess.Popen[bytes], *, program: str) -> None:
        self._process = process
        self._program = program
        self._stdin, self._stdout, self._stderr = _pipes(process)
        self._errors = bytearray()
        self._closed = False
        # stderr is always drained: who fills it up would stop.
        threading.Thread(target=self._drain_errors, name="local-stderr", daemon=True).start()

    def send(self, data: bytes) -> None:
        try:
            self._stdin.write(data)
            self._stdin.flush()
        except (OSError, ValueError) as error:
            raise _lost("it reads nothing any more") from error

    def receive(self, timeout: float) -> bytes:
        try:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, timeout))
            if ready:
                return os.read(self._stdout.fileno(), CHUNK)
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile by another thread
            raise _lost("it was closed") from error
        if self._closed:
            raise _lost("it was closed")
        raise TimedOut("NOTHING_RECEIVED", program=self._program, seconds=f"{timeout:g}", address=ADDRESS)

    def read_errors(self) -> bytes:
        return bytes(self._errors)

    def close(self) -> None:
        """Close stdin; stdout only at the program's end, for it may be carrying a change through."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        threading.Thread(target=self._reap, name="local-reaper", daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        self._stdout.close()

    def _drain_errors(self) -> None:
        while piece := os.read(self._stderr.fileno(), CHUNK):
            self._errors += piece
            del self._errors[:-ERRORS_KEPT]
        self._stderr.close()


def _start(command: Command) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ChannelRefused("EXEC_REFUSED", address=ADDRESS) from error


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise ValueError("a channel needs three pipes")
    return process.stdin, process.stdout, process.stderr


def _lost(detail: str) -> ConnectionLost:
    return ConnectionLost("CONNECTION_LOST", address=ADDRESS, detail=detail)
