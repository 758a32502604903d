"""The SSH server of one host: a shell for everything, the real agent's server for `agent-HASH.pyz serve`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import asyncssh

from simulator.agent_channel import read_serve_command, serve_agent

if TYPE_CHECKING:
    from simulator.faults import Link
    from simulator.layout import Layout
    from simulator.spec import HostSpec
    from simulator.system import SimulatedSystem

USER = "fleet"
MAX_SESSIONS = 10  # OpenSSH's MaxSessions


class HostServer:
    """Listens on one address; counts its sessions per connection as OpenSSH does."""

    def __init__(
        self,
        *,
        spec: HostSpec,
        layout: Layout,
        system: SimulatedSystem,
        host_key: asyncssh.SSHKey,
        client_key: asyncssh.SSHKey,
        link: Link,
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.system = system
        self.link = link
        self._host_key = host_key
        self._client_key = client_key
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()

    async def listen(self, address: str, port: int) -> int:
        """Give the port (a free one for 0). OSError where it is taken."""
        self._acceptor = await asyncssh.create_server(
            lambda: _Login(self),
            address,
            port,
            server_host_keys=[self._host_key],
            process_factory=self._run,
            encoding=None,
            server_version="OpenSSH_9.2p1-simulated",
            login_timeout=20,
        )
        return self._acceptor.get_port()

    async def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        self.disconnect_all()
        await asyncio.sleep(0)

    def disconnect_all(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()

    # -- connections

    def add(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.add(connection)

    def remove(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.discard(connection)

    def accepts(self, user: str, key: asyncssh.SSHKey) -> bool:
        return user == USER and key.public_data == self._client_key.public_data

    # -- commands

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command
        if command is None:
            process.stderr.write(b"A simulated host runs commands; it has no login shell.\n")
            process.exit(1)
            return
        options = read_serve_command(command, self.layout)
        try:
            if options is not None:
                process.exit(await serve_agent(process, system=self.system, options=options, link=self.link))
            else:
                process.exit(await self._run_shell(process, command))
        except (BrokenPipeError, ConnectionError, asyncssh.Error):
            process.close()

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.layout.home),
            "PATH": str(self.layout.bin),
            "USER": USER,
            "LOGNAME": USER,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.layout.tmp),
        }

    async def _run_shell(self, process: asyncssh.SSHServerProcess[bytes], command: str) -> int:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(),
            cwd=str(self.layout.home),
            start_new_session=True,
        )
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("a child with pipes has pipes")
        feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin))
        try:
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            code = await child.wait()
        finally:
            feeding.cancel()
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGKILL)
        return code if code >= 0 else 128 - code


class _Login(asyncssh.SSHServer):
    """Who may come in: the fleet's key, and a password where the host has one."""

    def __init__(self, server: HostServer) -> None:
        self._server = server
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        if self._server.link.take_connection():
            self._server.add(conn)
        else:
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's signature
        if self._connection is not None:
            self._server.remove(self._connection)

    async def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        await self._server.link.wait_while_silent()
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self._server.accepts(username, key)

    def password_auth_supported(self) -> bool:
        return self._server.spec.password is not None

    def validate_password(self, username: str, password: str) -> bool:
        return username == USER and password == self._server.spec.password


async def _feed(source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


async def _copy(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
