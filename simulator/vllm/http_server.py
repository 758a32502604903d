"""A small HTTP/1.1 server on a socket that is bound already: keep-alive, Content-Length, chunked answers.

Only what vLLM's clients need. A request is handed to one coroutine; an answer is whole or a stream of pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

MAX_BODY = 32 << 20
MAX_HEAD = 64 << 10
CLIENT_POLL_S = 0.05


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    client: str


@dataclass
class Answer:
    """`body` whole, or `stream` of pieces sent as chunks."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    stream: AsyncIterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)


def answer_json(value: Any, status: int = 200) -> Answer:
    """Compact JSON, as FastAPI writes it."""
    return Answer(status=status, body=json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


Handler = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Serves until `stop_listening` (open answers go on) or `abort` (everything is cut)."""

    def __init__(self, *, handle: Handler, log: Callable[[str, str, str], None]) -> None:
        self._handle = handle
        self._log = log
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def answering(self) -> int:
        return self._answering

    async def listen(self, sock: socket.socket) -> None:
        """OSError where another socket listens on the port already."""
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=MAX_HEAD)

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    def abort(self) -> None:
        self.stop_listening()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_until_answered(self) -> None:
        await self._quiet.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served in a task")
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while (request := await self._read(reader, writer)) is not None:
                if not await self._answer_while_heard(request, reader, writer):
                    break
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
            ValueError,
        ):
            pass  # the client went away, or the server was cut
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            with contextlib.suppress(Exception):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {}
        for line in rest:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        if length > MAX_BODY:
            return None
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(length) if length else b""
        address = writer.get_extra_info("peername") or ("?", 0)
        return Request(method, target, headers, body, f"{address[0]}:{address[1]}")

    async def _answer_while_heard(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer, but no longer than the client stays: an answer that hangs ends with its connection."""
        work = asyncio.ensure_future(self._answer(request, writer))
        try:
            while not work.done():
                await asyncio.wait((work,), timeout=CLIENT_POLL_S)
                if reader.at_eof() and not work.done():
                    return False
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        self._answering += 1
        self._quiet.clear()
        try:
            answer = await self._handle(request)
            keep = request.headers.get("connection", "").lower() != "close"
            status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
            self._log(request.client, f"{request.method} {request.path} HTTP/1.1", status)
            await self._send(answer, status, writer, keep=keep, head_only=request.method == "HEAD")
            return keep
        finally:
            self._answering -= 1
            if self._answering == 0:
                self._quiet.set()

    async def _send(
        self, answer: Answer, status: str, writer: asyncio.StreamWriter, *, keep: bool, head_only: bool
    ) -> None:
        head = [f"HTTP/1.1 {status}", f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
        if answer.content_type is not None:
            head.append(f"content-type: {answer.content_type}")
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        head.append(
            "transfer-encoding: chunked" if answer.stream is not None else f"content-length: {len(answer.body)}"
        )
        if not keep:
            head.append("connection: close")
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))
        if answer.stream is None:
            if not head_only:
                writer.write(answer.body)
            await writer.drain()
            return
        await writer.drain()
        async for piece in answer.stream:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
