"""The agent on a simulated host: the real server code in threads of this process, over the SSH channel."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from hosts.agent.call import Options
from hosts.agent.server import serve

if TYPE_CHECKING:
    from simulator.faults import Link
    from simulator.layout import Layout
    from simulator.system import SimulatedSystem

ARCHIVE = re.compile(r"agent-(?P<hash>[0-9A-Za-z]+)\.pyz$")
NAMES = {
    "--controller": "controller",
    "--state-root": "state_root",
    "--log-root": "log_root",
    "--temp-root": "temp_root",
}


def read_serve_command(command: str, layout: Layout) -> Options | None:
    """Options where the command starts the agent with an archive that is there; None for everything else."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    for index, word in enumerate(words[:-1]):
        match = ARCHIVE.search(word)
        if match is None or words[index + 1] != "serve":
            continue
        path = Path(_expand(word, layout))
        if not (path if path.is_absolute() else layout.home / path).is_file():
            return None  # the shell says it better
        return _read_options(words[index + 2 :], match["hash"], layout)
    return None


def _expand(word: str, layout: Layout) -> str:
    for name in ("~", "$HOME", "${HOME}"):
        if word.startswith(name + "/"):
            return str(layout.home) + word[len(name) :]
    return word


def _read_options(words: list[str], digest: str, layout: Layout) -> Options | None:
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, _, inline = rest.pop(0).partition("=")
        if name not in NAMES:
            return None
        if not inline and not rest:
            return None
        values[NAMES[name]] = _expand(inline or rest.pop(0), layout)
    if "controller" not in values:
        return None
    return Options(**({"temp_root": str(layout.tmp)} | values), agent_hash=digest)


async def serve_agent(
    process: asyncssh.SSHServerProcess[bytes], *, system: SimulatedSystem, options: Options, link: Link
) -> int:
    """Run the server until its input ends; the exit status of the agent."""
    ours, theirs = socket.socketpair()
    result = {"code": 1}
    thread = threading.Thread(
        target=_serve_in_thread,
        args=(theirs, system, options, result),
        name=f"agent-{system.hostname()}",
        daemon=True,
    )
    thread.start()
    reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
    feeding = asyncio.ensure_future(_feed(process.stdin, writer, link))
    try:
        while data := await reader.read(65536):
            await link.wait_while_silent()
            process.stdout.write(data)
            await process.stdout.drain()
    finally:
        feeding.cancel()
        writer.close()
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 5.0)
    return result["code"]


def _serve_in_thread(sock: socket.socket, system: SimulatedSystem, options: Options, result: dict[str, int]) -> None:
    # Closing the writer flushes it, which fails too when the controller has gone: the suppression spans both.
    with (
        contextlib.suppress(BrokenPipeError, ConnectionError),
        sock,
        sock.makefile("rb") as stdin,
        sock.makefile("wb") as stdout,
    ):
        serve(system, stdin, stdout, options)
        result["code"] = 0
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


async def _feed(source: asyncssh.SSHReader[bytes], writer: asyncio.StreamWriter, link: Link) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionError, asyncssh.Error):
        while data := await source.read(65536):
            await link.wait_while_silent()
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
