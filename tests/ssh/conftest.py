"""An SSH server in the test process (asyncssh) and sockets that misbehave, all on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import asyncssh
import pytest

from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICK = Limits(connect=2.0, banner=1.0, auth=3.0, channel=3.0)


def make_key(kind: str = "ssh-ed25519", **options: object) -> asyncssh.SSHKey:
    return asyncssh.generate_private_key(kind, **options)


def host_key_of(key: asyncssh.SSHKey) -> HostKey:
    return HostKey.parse(key.export_public_key("openssh").decode())


class _Account(asyncssh.SSHServer):
    def __init__(self, connections: list[asyncssh.SSHServerConnection], password: str | None) -> None:
        self._connections = connections
        self._password = password

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connections.append(conn)

    def password_auth_supported(self) -> bool:
        return self._password is not None

    def validate_password(self, username: str, password: str) -> bool:
        return password == self._password


async def _copy(source, sink) -> None:
    while piece := await source.read(65536):
        sink.write(piece)
        await sink.drain()


async def _feed(process, child) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while piece := await process.stdin.read(65536):
            child.stdin.write(piece)
            await child.stdin.drain()
    child.stdin.close()


class Server:
    """An sshd of the test: one account `fleet`; commands are answered by `handle`, or run by a real shell."""

    def __init__(self, host_key: asyncssh.SSHKey, client_key: asyncssh.SSHKey, *, password: str | None = None) -> None:
        self.host_key = host_key
        self.client_key = client_key
        self._password = password
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._children: list[asyncio.subprocess.Process] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[asyncssh.SSHServerConnection] = []
        self.port = self._call(self._listen())

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def _listen(self) -> int:
        acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(
                self.client_key.export_public_key("openssh").decode()
            ),
            server_factory=lambda: _Account(self._connections, self._password),
            process_factory=self._run,
            encoding=None,
        )
        self._acceptor = acceptor
        return acceptor.sockets[0].getsockname()[1]

    async def _run(self, process: asyncssh.SSHServerProcess) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            f"exec {process.command or 'true'}",
            stdin=-1,
            stdout=-1,
            stderr=-1,
            start_new_session=True,
        )
        self._children.append(child)
        self._tasks.append(asyncio.current_task())
        feeding = asyncio.ensure_future(_feed(process, child))
        try:
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            status = await child.wait()
        except (OSError, asyncssh.Error):
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            return
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        if status < 0:
            process.exit_with_signal("KILL")
        else:
            process.exit(status)

    def drop_everyone(self) -> None:
        """Close the listening socket and break every connection without a word."""
        self._call(self._drop())

    async def _drop(self) -> None:
        self._acceptor.close()
        for connection in self._connections:
            connection.abort()

    def close(self) -> None:
        self.drop_everyone()
        self._call(self._end_children())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()

    async def _end_children(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        await asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), 5)
        await asyncio.sleep(0.05)

    def endpoint(self, **changes: object) -> Endpoint:
        base = {
            "address": "127.0.0.1",
            "port": self.port,
            "user": "fleet",
            "host_key": host_key_of(self.host_key),
            "auth": KeyAuth(self.client_key.export_private_key("openssh").decode()),
        }
        return Endpoint(**{**base, **changes})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(make_key(), make_key())
    yield server
    server.close()


@pytest.fixture
def raw_port() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Give the port of a TCP server that treats each connection by the function given."""
    opened: list[socket.socket] = []

    def start(treat: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                opened.append(peer)
                # The client may have left before all was said.
                with contextlib.suppress(OSError):
                    treat(peer)

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    yield start
    for sock in opened:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
