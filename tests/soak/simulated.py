"""One simulated host in a process of its own, seen through the simulator's control."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SPEED = 150


class Simulated:
    def __init__(self, described: dict[str, Any], control: dict[str, Any]) -> None:
        self.described = described
        self.control = control

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self.control["address"], self.control["port"], timeout=10)
        headers = {"Authorization": f"Bearer {self.control['token']}"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def state(self) -> dict[str, Any]:
        return self.ask("GET", f"/hosts/{self.described['name']}")

    def servers(self) -> int:
        """API servers that live there."""
        return sum("vllm serve" in process["title"] for process in self.state()["processes"])

    def bytes_held(self) -> int:
        return sum(device["used"] for device in self.state()["devices"])

    def starts(self) -> int:
        """How often a vLLM was started there since the beginning."""
        return self.state()["starts"]


@contextmanager
def simulated_host(directory: Path) -> Iterator[Simulated]:
    hosts = directory / "hosts.json"
    hosts.write_text(json.dumps([{"name": "soak", "gpus": ["L4", "L4"]}]), "utf-8")
    command = [sys.executable, "-m", "simulator", "--dir", str(directory / "fleet"), "--hosts", str(hosts)]
    command += ["--port-base", "0", "--network", "93", "--speed", str(SPEED)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    while not lines or not lines[-1].get("ready"):
        lines.append(json.loads(process.stdout.readline()))
    control = json.loads(Path(lines[-1]["control"]["file"]).read_text("utf-8"))
    try:
        yield Simulated(lines[0], control)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
