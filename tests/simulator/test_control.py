from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.faults import FAULTS
from simulator.spec import PRESETS, parse_host

ROOT = Path(__file__).parents[2]


@pytest.fixture
def simulator(tmp_path):
    """The command, with its first lines read."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([{"name": "one", "gpus": ["L4"]}, {"name": "two", "password": "pw"}]))
    network = str(100 + (os.getpid() + 50) % 100)
    command = [sys.executable, "-m", "simulator", "--dir", str(tmp_path / "fleet"), "--hosts", str(hosts)]
    process = subprocess.Popen(
        [*command, "--port-base", "0", "--network", network], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    lines: list[dict[str, Any]] = []
    while not lines or not lines[-1].get("ready"):
        lines.append(json.loads(process.stdout.readline()))
    yield process, lines, tmp_path / "fleet"
    process.kill()
    process.wait()
    process.stdout.close()


def ask(directory: Path, method: str, path: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
    control = json.loads((directory / "control.json").read_text())
    connection = http.client.HTTPConnection(control["address"], control["port"], timeout=5)
    headers = {"Authorization": f"Bearer {token or control['token']}"}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    result = answer.status, json.loads(answer.read())
    connection.close()
    return result


class TestCommand:
    def test_names_each_host_in_one_line_then_says_ready(self, simulator):
        _process, lines, directory = simulator
        assert [line.get("name") for line in lines] == ["one", "two", None]
        assert lines[0]["user"] == "fleet"
        assert lines[0]["host_key"].startswith("ssh-ed25519 ")
        assert Path(lines[0]["private_key"]).stat().st_mode & 0o777 == 0o600
        assert lines[1]["password"] == "pw"
        assert lines[2]["control"]["file"] == str(directory / "control.json")

    def test_ends_with_sigterm(self, simulator):
        process, _lines, directory = simulator
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert not (directory / "control.json").exists()

    def test_controls_hosts_for_who_has_the_token(self, simulator):
        _process, lines, directory = simulator
        assert ask(directory, "GET", "/hosts", token="wrong")[0] == 401
        assert ask(directory, "GET", "/hosts") == (200, lines[:-1])
        before = ask(directory, "GET", "/hosts/one")[1]
        assert before["devices"][0]["used"] == 0
        assert ask(directory, "POST", "/hosts/one/kill", {"title": "nothing"}) == (200, {"pids": []})
        assert ask(directory, "POST", "/hosts/one/reboot", {}) == (200, {})
        assert ask(directory, "GET", "/hosts/one")[1]["boot_id"] != before["boot_id"]
        assert ask(directory, "POST", "/hosts/one/fail-next", {"fault": "hang"}) == (200, {})
        assert ask(directory, "POST", "/hosts/one/fail-next", {"fault": "nonsense"})[0] == 400
        assert ask(directory, "POST", "/hosts/none/reboot", {})[0] == 404
        for fault in FAULTS:
            assert ask(directory, "POST", "/hosts/two/fail-next", {"fault": fault}) == (200, {})
        for action, body in (
            ("reset", {"count": 2}),
            ("silent", {"seconds": 1}),
            ("fill-disk", {}),
            ("disconnect", {}),
        ):
            assert ask(directory, "POST", f"/hosts/two/{action}", body) == (200, {})
        assert ask(directory, "POST", "/hosts/two/reset", {})[0] == 400
        assert ask(directory, "POST", "/hosts/two/explode", {})[0] == 400

    def test_dies_with_its_parent(self, tmp_path):
        network = str(100 + (os.getpid() + 51) % 100)
        script = (
            "import subprocess, sys, time\n"
            f"p = subprocess.Popen([sys.executable, '-m', 'simulator', '--dir', {str(tmp_path)!r}, "
            f"'--preset', 'one',"
            f" '--port-base', '0', '--network', '{network}'], stdout=subprocess.PIPE)\n"
            "p.stdout.readline(); print(p.pid, flush=True); time.sleep(60)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        import select

        assert select.select([pidfd], [], [], 10)[0]
        os.close(pidfd)


class TestSpec:
    def test_demo_has_the_hosts_of_the_tour(self):
        assert {host.name: len(host.gpus) for host in PRESETS["demo"]} == {
            "gpu-a": 2,
            "gpu-b": 8,
            "cpu-box": 0,
            "no-python": 0,
        }

    def test_refuses_unknown_fields(self):
        with pytest.raises(ValueError, match="colour"):
            parse_host({"name": "x", "colour": "red"})
