"""A plain client of the agent protocol over paramiko, for tests of the simulated hosts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import paramiko

from simulator.fleet import Fleet, SimulatedHost

ARCHIVE = "agent-0123456789abcdef.pyz"


def connect(fleet: Fleet, host: SimulatedHost) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    kind, text = host.host_key_line.split()[:2]
    key = paramiko.Ed25519Key(data=paramiko.message.Message(__import__("base64").b64decode(text)).asbytes())
    client.get_host_keys().add(f"[{host.address}]:{host.port}", kind, key)
    client.connect(
        host.address,
        port=host.port,
        username="fleet",
        pkey=paramiko.Ed25519Key.from_private_key_file(str(fleet.private_key_path)),
        look_for_keys=False,
        allow_agent=False,
        timeout=5,
    )
    return client


def run(client: paramiko.SSHClient, command: str, data: bytes = b"") -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one command."""
    stdin, stdout, stderr = client.exec_command(command, timeout=10)
    stdin.write(data)
    stdin.channel.shutdown_write()
    out, err = stdout.read().decode(), stderr.read().decode()
    return stdout.channel.recv_exit_status(), out, err


class AgentChannel:
    """One `serve` channel. `ask` waits for the result or refusal and keeps events."""

    def __init__(self, client: paramiko.SSHClient, host: SimulatedHost, *, controller: str = "c1") -> None:
        directory = host.layout.home / ".fleetadmin" / "agents"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ARCHIVE).touch()
        command = f"python3 {shlex.quote(str(directory / ARCHIVE))} serve --controller {controller}"
        self._stdin, self._stdout, self._stderr = client.exec_command(command, timeout=20)
        self.hello = self._read()
        self._count = 0
        self.controller = controller

    def _read(self) -> dict[str, Any]:
        return json.loads(self._stdout.readline())

    def send(self, verb: str, fence: dict[str, Any] | None = None, **args: Any) -> str:
        self._count += 1
        request = {"v": 1, "id": str(self._count), "verb": verb, "args": args}
        if fence is not None:
            request["fence"] = fence
        self._stdin.write(json.dumps(request) + "\n")
        self._stdin.flush()
        return str(self._count)

    def answers(self, request: str) -> Iterator[dict[str, Any]]:
        while True:
            line = self._read()
            if line["id"] != request or line["kind"] == "heartbeat":
                continue
            yield line
            if line["kind"] in ("result", "refusal"):
                return

    def ask(
        self, verb: str, *, change: bool = False, **args: Any
    ) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """(kind, body, event bodies)."""
        fence = {"controller": self.controller, "run": "r1", "attempt": 1} if change else None
        events: list[dict[str, Any]] = []
        for line in self.answers(self.send(verb, fence, **args)):
            if line["kind"] != "event":
                return line["kind"], line["body"], events
            events.append(line["body"])
        raise AssertionError("the channel ended")

    def close(self) -> None:
        self._stdin.channel.shutdown_write()
