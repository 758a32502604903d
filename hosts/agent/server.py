"""The loop of the agent.

Requests come in on one stream, answers go out on the other, each request in a thread.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import traceback
from typing import Any, BinaryIO, Dict, Optional

from .call import Call, Cancelled, Options
from .facts import utc_offset
from .lines import LINE_LIMIT, PROTOCOL, LineTooLong, LineWriter, encode_line, read_line
from .observe import utc_text
from .refusal import Refusal, bad_request
from .state_root import default_path
from .system import System
from .verbs import CHANGING, VERBS

REQUESTS = 64
HEARTBEAT_S = 5.0
STREAM_END_S = 2.0
CHANGE_END_S = 120.0


class Request(threading.Thread):
    """One open request and its answers."""

    def __init__(self, server: "Server", request_id: str, verb: str, call: Call) -> None:
        super().__init__(name=f"{verb} {request_id}", daemon=True)
        self.request_id = request_id
        self.verb = verb
        self.call = call
        self._server = server
        self._lock = threading.Lock()
        self._seq = 0
        self._ended = False

    def answer(self, kind: str, body: Dict[str, Any]) -> None:
        """Send one answer; nothing after the result or refusal."""
        with self._lock:
            if self._ended:
                return
            self._ended = kind in ("result", "refusal")
            line = encode_line({"v": PROTOCOL, "id": self.request_id, "seq": self._seq, "kind": kind, "body": body})
            if len(line) > LINE_LIMIT:
                line = self._too_large(kind, len(line))
            self._seq += 1
            self._server.writer.write(line)
        if self._server.writer.broken.is_set() and self.verb not in CHANGING:
            self.call.cancelled.set()

    def _too_large(self, kind: str, size: int) -> bytes:
        self._ended = True
        self.call.cancelled.set()
        refusal = Refusal(
            "ANSWER_TOO_LARGE",
            f"The {kind} of '{self.verb}' has {size} bytes; a line may have {LINE_LIMIT}.",
            "Ask for less: narrower roots, fewer launches.",
            {"size": size, "limit": LINE_LIMIT},
        )
        return encode_line(
            {
                "v": PROTOCOL,
                "id": self.request_id,
                "seq": self._seq,
                "kind": "refusal",
                "body": refusal.body(),
            }
        )

    def run(self) -> None:
        try:
            kind, body = "result", VERBS[self.verb](self.call)
        except Refusal as refusal:
            kind, body = "refusal", refusal.body()
        except Cancelled:
            kind, body = "result", {"cancelled": True}
        except Exception as error:  # noqa: BLE001 - the one broad place: a crash is an answer too
            kind, body = "refusal", crash_body(error)
        self._server.forget(self)
        self.answer(kind, body)


def crash_body(error: Exception) -> Dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Refusal(
        "AGENT_ERROR",
        f"The agent failed: {type(error).__name__}: {str(error)[:500]}.",
        "Report it with the traceback; observe before trying again.",
        {"traceback": text[-16000:]},
    ).body()


class Server:
    """The open requests of one channel."""

    def __init__(self, system: System, stdout: BinaryIO, options: Options) -> None:
        self.system = system
        self.options = options
        self.writer = LineWriter(stdout)
        self._lock = threading.Lock()
        self._open: Dict[str, Request] = {}
        self._ending = threading.Event()

    def forget(self, request: Request) -> None:
        with self._lock:
            self._open.pop(request.request_id, None)

    def open_requests(self) -> "list[Request]":
        with self._lock:
            return list(self._open.values())

    def send_hello(self) -> None:
        self._send("", "hello", hello_body(self.system, self.options))

    def _send(self, request_id: str, kind: str, body: Dict[str, Any]) -> None:
        """An answer outside any thread: hello, cancel, and refusals of what never became a request."""
        self.writer.write(encode_line({"v": PROTOCOL, "id": request_id, "seq": 0, "kind": kind, "body": body}))

    def beat(self) -> None:
        """A heartbeat for every open request, until the channel ends."""
        while not self._ending.wait(HEARTBEAT_S):
            for request in self.open_requests():
                request.answer("heartbeat", {})

    def refuse(self, request_id: str, refusal: Refusal) -> None:
        self._send(request_id, "refusal", refusal.body())

    def take(self, line: bytes) -> None:
        """One request line. Never raises: nonsense is refused."""
        request_id = ""
        try:
            fields = parse_request(line)
            request_id = fields["id"]
            check_request(fields)
            if fields["verb"] == "cancel":
                self._cancel(fields["args"])
                self._send(request_id, "result", {})
            else:
                self._start(fields)
        except Refusal as refusal:
            self.refuse(request_id, refusal)

    def _cancel(self, args: Dict[str, Any]) -> None:
        """Unknown ids are no error: the stream may just have ended."""
        with self._lock:
            request = self._open.get(str(args.get("id")))
        if request is not None and request.verb not in CHANGING:
            request.call.cancelled.set()

    def _start(self, fields: Dict[str, Any]) -> None:
        verb, request_id = fields["verb"], fields["id"]
        if verb not in VERBS:
            raise Refusal(
                "UNKNOWN_VERB",
                f"This agent has no verb '{verb[:64]}'.",
                "Send a newer agent.",
                {"verbs": sorted(VERBS)},
            )
        call = Call(
            system=self.system,
            options=self.options,
            args=fields["args"],
            emit=lambda body: request.answer("event", body),
            fence_fields=fields.get("fence"),
        )
        request = Request(self, request_id, verb, call)
        with self._lock:
            if request_id in self._open:
                raise Refusal("DUPLICATE_ID", f"Request {request_id} is still open.", "Use a new id for every request.")
            if len(self._open) >= REQUESTS:
                raise Refusal(
                    "TOO_MANY_REQUESTS",
                    f"{REQUESTS} requests are open on this channel.",
                    "Wait until one has ended, or cancel a stream.",
                    {"limit": REQUESTS},
                )
            self._open[request_id] = request
        request.start()

    def end(self) -> None:
        """The channel is closed: streams end, begun changes are carried through."""
        self._ending.set()
        requests = self.open_requests()
        for request in requests:
            if request.verb not in CHANGING:
                request.call.cancelled.set()
        for request in requests:
            request.join(CHANGE_END_S if request.verb in CHANGING else STREAM_END_S)


def parse_request(line: bytes) -> Dict[str, Any]:
    """The request's fields, of which `id` is good; Refusal otherwise."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refusal("BAD_JSON", "The line is no JSON in UTF-8.", "Send one JSON object a line.") from None
    if not isinstance(fields, dict):
        raise Refusal("BAD_JSON", "The line holds no JSON object.", "Send one JSON object a line.")
    request_id = fields.get("id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 128:
        raise bad_request("'id' must be a string of 1 to 128 characters.", field="id")
    return fields


def check_request(fields: Dict[str, Any]) -> None:
    """Refuse under the request's own id what cannot be served; absent `args` become an empty object."""
    fields.setdefault("args", {})
    if fields.get("v") != PROTOCOL:
        raise Refusal(
            "PROTOCOL_UNKNOWN",
            f"This agent speaks protocol {PROTOCOL}.",
            "Send an agent that speaks the other one.",
            {"protocol": [PROTOCOL]},
        )
    if not isinstance(fields.get("verb"), str) or not isinstance(fields["args"], dict):
        raise bad_request("'verb' must be a string and 'args' an object.")


def hello_body(system: System, options: Options) -> Dict[str, Any]:
    now = system.now()
    return {
        "protocol": [PROTOCOL],
        "agent": options.agent_hash,
        "python": platform.python_version(),
        "boot_id": system.boot_id(),
        "machine_id": system.machine_id(),
        "clock": utc_text(now),
        "utc_offset_s": utc_offset(now),
        "uid": system.uid,
        "user": system.user,
        "home": system.home,
        "state_root": options.state_root or default_path(system.home),
        "hostname": system.hostname(),
        "pid": os.getpid(),
    }


def serve(system: System, stdin: BinaryIO, stdout: BinaryIO, options: Options) -> None:
    """Serve one channel until stdin ends. Returns when all streams have ended and begun changes are done."""
    server = Server(system, stdout, options)
    server.send_hello()
    beats = threading.Thread(target=server.beat, name="heartbeat", daemon=True)
    beats.start()
    while not server.writer.broken.is_set():
        line: Optional[bytes]
        try:
            line = read_line(stdin)
        except LineTooLong:
            refusal = Refusal(
                "LINE_TOO_LONG",
                f"A line may have {LINE_LIMIT} bytes.",
                "Send less in one request.",
                {"limit": LINE_LIMIT},
            )
            server.refuse("", refusal)
            continue
        except (OSError, ValueError):
            break
        if line is None:
            break
        if line.strip():
            server.take(line)
    server.end()
