"""A conversation with the agent on one host: many requests side by side over one channel.

    AgentSession  request() ─┐                        ┌─ one waiting request each
                  stream()  ─┼─ lines → agent → lines ┤  (a reader thread sorts the answers by id)
                  cancel    ─┘                        └─ stream: events, then result

Protocol 1 (docs/agent-protocol.md). Unknown fields and kinds are passed over. A refusal raises AgentRefused;
a broken connection, or 15 s without a line while something is asked, raises ConnectionLost in everybody who
waits.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from hosts.agent_archive import AgentArchive
from hosts.agent_install import AgentRefused, Refusal, install_agent, order_interpreters
from hosts.agent_lines import LINE_MAX, Answer, LineBuffer, read_answer
from hosts.agent_stream import Mailbox, Stream, read_refusal
from hosts.ssh.command import Command, clean_text
from hosts.ssh.errors import ConnectionLost, SshError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hosts.ssh.runner import Channel, Runner

__all__ = ["AgentArchive", "AgentRefused", "AgentSession", "Refusal", "Stream", "open_session"]

PROTOCOL = 1
HELLO_WITHIN_S = 20.0
SILENCE_MAX_S = 15.0  # three missed heartbeats
NOISE_MAX = 64 * 1024  # bytes that a login shell may print before the first line
SEND_TIMEOUT_S = 15.0


def open_session(
    runner: Runner,
    *,
    archive: AgentArchive,
    controller_id: str,
    interpreters: Sequence[str] = (),
    state_root: str | None = None,
    log_root: str | None = None,
    on_installed: Callable[[str, str], None] | None = None,
    vllm_interpreters: Sequence[str] = (),
) -> AgentSession:
    """Install the agent where it is missing, start it, and read its hello.

    `interpreters` are the administrator's, tried first; `vllm_interpreters`, those of known vLLM
    installations, after python3 and its named versions. `on_installed` is told path and digest after a copy.
    Errors: AgentRefused (NO_PYTHON, PYTHON_TOO_OLD, AGENT_DIFFERS, AGENT_SILENT, AGENT_GARBLED,
    PROTOCOL_UNKNOWN, STATE_ROOT_*, LOG_ROOT_*) and SshError.
    """
    installed = install_agent(
        runner,
        archive=archive,
        interpreters=order_interpreters(chosen=interpreters, of_vllm=vllm_interpreters),
        state_root=state_root,
        on_installed=on_installed,
    )
    argv = [installed.python, "-I", installed.path, "serve", "--controller", controller_id]
    argv += ["--state-root", state_root] if state_root else []
    argv += ["--log-root", log_root] if log_root else []
    channel = runner.open(Command(argv=tuple(argv), timeout=SEND_TIMEOUT_S))
    try:
        lines = LineBuffer()
        hello = _read_hello(channel, lines, python=installed.python)
    except BaseException:
        channel.close()
        raise
    return AgentSession(channel, lines, hello=hello)


class AgentSession:
    """An agent that said hello.

    Safe to use from several threads; `close` ends the agent, not what it launched.
    """

    def __init__(self, channel: Channel, lines: LineBuffer, *, hello: Mapping[str, Any]) -> None:
        self.hello = dict(hello)
        self._channel = channel
        self._lines = lines
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._open: dict[str, Mailbox] = {}
        self._broken: SshError | None = None
        self._closed = False
        self._last_sign = time.monotonic()
        self._reader = threading.Thread(target=self._read, name="agent-session", daemon=True)
        self._reader.start()

    @property
    def machine_id(self) -> str:
        return str(self.hello.get("machine_id") or "")

    @property
    def boot_id(self) -> str:
        return str(self.hello.get("boot_id") or "")

    @property
    def alive(self) -> bool:
        """Whether the next request has a chance. False is certain, True is the last that was seen."""
        return self._broken is None and not self._closed

    def request(
        self,
        verb: str,
        args: Mapping[str, Any],
        *,
        fence: Mapping[str, Any] | None = None,
        timeout: float,
    ) -> dict[str, Any]:
        """Ask and wait for the result's body. Events on the way are passed over.

        `timeout` is seconds; after it the request is cancelled and TimedOut raised, and what the verb had
        begun may have happened. Errors: AgentRefused, TimedOut, ConnectionLost.
        """
        box = self._send(verb, args, fence)
        until = time.monotonic() + timeout
        while True:
            answer = box.take(until - time.monotonic())
            if answer is None:
                self._abandon(box)
                program, seconds = f"agent {verb}", f"{timeout:g}"
                raise TimedOut("COMMAND_TIMEOUT", program=program, seconds=seconds, address="the host")
            if answer.kind == "refusal":
                raise AgentRefused.of(read_refusal(answer.body))
            if answer.kind == "result":
                return answer.body

    def stream(
        self,
        verb: str,
        args: Mapping[str, Any],
        *,
        fence: Mapping[str, Any] | None = None,
        idle_timeout: float | None = None,
    ) -> Stream:
        """Ask and give an iterator over the events' bodies; its `result` is there afterwards.

        `idle_timeout` is seconds without an event (heartbeats are none), None for no bound: then TimedOut is
        raised and the request cancelled. Iterating raises as `request`, and AgentRefused (STREAM_OVERRUN) if
        the reader of them falls too far behind: ask again from the last offset.
        """
        box = self._send(verb, args, fence)
        return Stream(box, idle_timeout=idle_timeout, cancel=self._cancel, abandon=self._abandon)

    def close(self) -> None:
        """End the conversation; may be called twice. Those who wait get ConnectionLost."""
        self._closed = True
        self._channel.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(5.0)
        self._break(_lost("the session was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _send(self, verb: str, args: Mapping[str, Any], fence: Mapping[str, Any] | None) -> Mailbox:
        request: dict[str, Any] = {"v": PROTOCOL, "id": str(next(self._ids)), "verb": verb, "args": args}
        if fence is not None:
            request["fence"] = fence
        line = json.dumps(request, ensure_ascii=True, separators=(",", ":"), default=dict).encode("ascii") + b"\n"
        if len(line) > LINE_MAX:
            raise AgentRefused.of(_too_long(verb, len(line)))
        box = Mailbox(request["id"], verb)
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._open[box.id] = box
        try:
            self._write(line)
        except BaseException:
            self._forget(box)
            raise
        return box

    def _write(self, line: bytes) -> None:
        with self._sending:
            self._channel.send(line)

    def _cancel(self, box: Mailbox) -> None:
        """Ask the agent to end a request; the answer comes as usual, that of `cancel` is not awaited."""
        request = {"v": PROTOCOL, "id": str(next(self._ids)), "verb": "cancel", "args": {"id": box.id}}
        with contextlib.suppress(SshError):
            self._write(json.dumps(request).encode("ascii") + b"\n")

    def _abandon(self, box: Mailbox) -> None:
        if self._forget(box):
            self._cancel(box)

    def _forget(self, box: Mailbox) -> bool:
        with self._lock:
            return self._open.pop(box.id, None) is not None

    def _read(self) -> None:
        try:
            while not self._closed:
                self._read_once()
        except SshError as error:
            self._break(error)
        except AgentRefused as refused:
            self._break(_lost(refused.message.rstrip(".")))

    def _read_once(self) -> None:
        for line in self._lines.take_lines():
            answer = read_answer(line)
            if answer is not None:
                self._last_sign = time.monotonic()
                self._deliver(answer)
        self._watch_silence()
        try:
            piece = self._channel.receive(1.0)
        except TimedOut:
            return
        if not piece:
            detail = clean_text(self._channel.read_errors()).strip()[-300:]
            raise _lost(f"the agent ended: {detail}" if detail else "the agent ended")
        self._lines.add(piece)

    def _watch_silence(self) -> None:
        with self._lock:
            first = min((box.sent_at for box in self._open.values()), default=None)
        if first is not None and time.monotonic() - max(first, self._last_sign) > SILENCE_MAX_S:
            raise _lost(f"no sign of life for {SILENCE_MAX_S:g} s")

    def _deliver(self, answer: Answer) -> None:
        with self._lock:
            box = self._open.get(answer.id)
            if box is not None and answer.is_last:
                del self._open[answer.id]
        if box is not None and answer.kind != "heartbeat":
            box.put(answer)

    def _break(self, error: SshError) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = error
            waiting, self._open = list(self._open.values()), {}
        for box in waiting:
            box.fail(error)
        self._channel.close()


def _read_hello(channel: Channel, lines: LineBuffer, *, python: str) -> dict[str, Any]:
    """Wait for the first line of the agent. A `refusal` instead (state root) is raised."""
    until = time.monotonic() + HELLO_WITHIN_S
    seen = 0
    while True:
        left = until - time.monotonic()
        try:
            piece = channel.receive(max(0.0, left))
        except TimedOut as error:
            raise AgentRefused.of(_silent(channel, python)) from error
        seen += len(piece)
        if not piece or seen > NOISE_MAX:
            raise AgentRefused.of(_silent(channel, python))
        lines.add(piece)
        for line in lines.take_lines():
            answer = read_answer(line)  # None: a line of the login shell
            if answer is not None and answer.id == "" and answer.kind in {"hello", "refusal"}:
                return _judge_hello(answer)


def _judge_hello(answer: Answer) -> dict[str, Any]:
    if answer.kind == "refusal":
        raise AgentRefused.of(read_refusal(answer.body))
    spoken = answer.body.get("protocol")
    if not isinstance(spoken, list) or PROTOCOL not in spoken:
        raise AgentRefused.of(
            Refusal(
                "PROTOCOL_UNKNOWN",
                f"The agent speaks protocol {spoken}, this server {PROTOCOL}.",
                "Update this server; the agent is copied anew by itself.",
                {"agent": spoken, "here": PROTOCOL},
            )
        )
    return answer.body


def _silent(channel: Channel, python: str) -> Refusal:
    written = ""
    with contextlib.suppress(SshError):
        written = clean_text(channel.read_errors()).strip()[-2000:]
    last = written.splitlines()[-1][:300] if written else "it wrote nothing"
    return Refusal(
        "AGENT_SILENT",
        f"The agent did not start under {python} ({last}).",
        "Run that Python on the host by hand, and look at the load and the disk of the host.",
        {"python": python, "stderr": written},
    )


def _too_long(verb: str, size: int) -> Refusal:
    return Refusal(
        "REQUEST_TOO_LONG",
        f"The request `{verb}` is {size} bytes long, {LINE_MAX} are allowed.",
        "Ask for less at a time.",
        {"bytes": size, "limit": LINE_MAX},
    )


def _lost(detail: str) -> ConnectionLost:
    return ConnectionLost("CONNECTION_LOST", address="the host", detail=detail)
