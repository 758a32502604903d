"""A channel's bytes: stdin, stdout and stderr moved by one thread, with one deadline.

stdout and stderr share the channel's window: whoever reads only one of them hangs as soon as the other has
filled it (2 MiB). Both are therefore always drained. Takes channel objects and imports nothing of the
library they come from.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hosts.ssh.errors import ConnectionLost, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

CHUNK = 64 * 1024
ERRORS_KEPT = 16 * 1024
LOOK_AGAIN_S = 0.25  # a lost wake-up costs this at most


class RawChannel(Protocol):
    """The part of paramiko.Channel that is used here."""

    eof_received: int
    closed: bool
    exit_status: int

    def fileno(self) -> int: ...
    def recv(self, nbytes: int) -> bytes: ...
    def recv_ready(self) -> bool: ...
    def recv_stderr(self, nbytes: int) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...
    def send(self, s: bytes) -> int: ...
    def sendall(self, s: bytes) -> None: ...
    def send_ready(self) -> bool: ...
    def settimeout(self, timeout: float | None) -> None: ...
    def shutdown_write(self) -> None: ...
    def exit_status_ready(self) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    exit_status: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool


class _Kept:
    """Bytes up to a bound; the rest is counted as dropped."""

    def __init__(self, bound: int) -> None:
        self.data = bytearray()
        self.dropped = False
        self._bound = bound

    def add(self, piece: bytes) -> None:
        room = self._bound - len(self.data)
        self.data += piece[:room]
        self.dropped = self.dropped or len(piece) > room


def run_on_channel(raw: RawChannel, *, stdin: bytes, until: float, max_output: int) -> Outcome:
    """Feed `stdin`, collect both outputs, wait for the exit status.

    TimeoutError after `until` (monotonic seconds).
    """
    out, err = _Kept(max_output), _Kept(max_output)
    poller = select.poll()
    poller.register(raw.fileno(), select.POLLIN)
    rest = memoryview(stdin)
    if not rest:
        raw.shutdown_write()
    while True:
        rest = _feed(raw, rest)
        moved = _drain(raw, out, err)
        if not moved and _is_over(raw):
            break
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not moved:
            poller.poll(min(left, 0.005 if rest else LOOK_AGAIN_S) * 1000)
    status = raw.exit_status if raw.exit_status_ready() and raw.exit_status >= 0 else None
    return Outcome(status, bytes(out.data), bytes(err.data), out.dropped or err.dropped)


def _feed(raw: RawChannel, rest: memoryview) -> memoryview:
    """Send what the window takes now; close stdin after the last byte."""
    while rest and not raw.closed and not raw.eof_received and raw.send_ready():
        sent = raw.send(bytes(rest[:CHUNK]))
        rest = rest[sent:]
        if not rest:
            raw.shutdown_write()
    return rest


def _drain(raw: RawChannel, out: _Kept, err: _Kept) -> bool:
    moved = False
    while raw.recv_ready():
        out.add(raw.recv(CHUNK))
        moved = True
    while raw.recv_stderr_ready():
        err.add(raw.recv_stderr(CHUNK))
        moved = True
    return moved


def _is_over(raw: RawChannel) -> bool:
    """Whether nothing more can come: the channel is closed, or both ends of output and the status are there.

    The end of output is announced for both streams at once, and sshd sends the status before or after it.
    """
    ended = raw.closed or (raw.eof_received and raw.exit_status_ready())
    return bool(ended) and not raw.recv_ready() and not raw.recv_stderr_ready()


def give_up(raw: RawChannel) -> None:
    """Close the channel; where the connection broke a moment before, it is closed already."""
    # The library tells that by OSError or EOFError, as the moment wants it.
    with contextlib.suppress(OSError, EOFError):
        raw.close()


class ParamikoChannel:
    """A Channel (hosts/ssh/runner.py) over a paramiko channel."""

    def __init__(
        self,
        raw: RawChannel,
        *,
        translate: Callable[[], AbstractContextManager[None]],
        is_alive: Callable[[], bool],
        on_close: Callable[[], None],
        send_timeout: float,
        program: str,
        address: str,
    ) -> None:
        self._raw = raw
        self._translate = translate
        self._is_alive = is_alive
        self._on_close = on_close
        self._about = {"program": program, "address": address}
        self._errors = bytearray()
        self._closing = threading.Lock()
        self._closed = False
        raw.settimeout(send_timeout)
        self._poller = select.poll()
        self._poller.register(raw.fileno(), select.POLLIN)

    def send(self, data: bytes) -> None:
        with self._translate():
            self._raw.sendall(data)

    def receive(self, timeout: float) -> bytes:
        until = time.monotonic() + timeout
        while True:
            with self._translate():
                self._keep_errors()
                if self._raw.recv_ready():
                    return self._raw.recv(CHUNK)
            if self._raw.closed or self._raw.eof_received:
                return self._end()
            left = until - time.monotonic()
            if left <= 0:
                raise TimedOut("NOTHING_RECEIVED", seconds=f"{timeout:g}", **self._about)
            self._poller.poll(min(left, LOOK_AGAIN_S) * 1000)

    def read_errors(self) -> bytes:
        with self._translate():
            self._keep_errors()
        return bytes(self._errors)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        try:
            give_up(self._raw)
        finally:
            self._on_close()

    def _end(self) -> bytes:
        if self._raw.recv_ready():  # came between the two looks
            return self._raw.recv(CHUNK)
        # The host announces the end of the output before it closes a channel; a broken connection does not.
        if not self._closed and not self._raw.eof_received and not self._is_alive():
            raise ConnectionLost("CONNECTION_LOST", address=self._about["address"], detail="it was closed")
        return b""

    def _keep_errors(self) -> None:
        while self._raw.recv_stderr_ready():
            self._errors += self._raw.recv_stderr(CHUNK)
            del self._errors[:-ERRORS_KEPT]
