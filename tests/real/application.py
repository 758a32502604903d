"""The whole application as its user runs it, `manage.py up`, in a directory of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleetadmin.launcher import free_port

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Application:
    """A running application: `url`, the first administrator's `password`, and its command line."""

    url: str
    var: Path
    process: subprocess.Popen
    env: dict[str, str]
    output: list[str] = field(default_factory=list)

    @property
    def password(self) -> str:
        return wait_for(lambda: re.search(r"with the password (\S+)", "".join(self.output)), what="the password")[1]

    def manage(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def fleet(self, *arguments: str, timeout: float = 300) -> tuple[int, dict]:
        """(exit code, JSON) of `manage.py fleet …`."""
        done = self.manage("fleet", *arguments, "--json", timeout=timeout)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def instance(self, name: str) -> dict:
        _code, body = self.fleet("status")
        return next(row for row in body["instances"] if row["instance"] == name)

    def processes(self) -> list[int]:
        """Living processes whose environment names this application's directory."""
        return processes_of(self.var)

    def kill_web(self) -> None:
        """Kill every web process with -9, as the kernel does when memory runs out, and wait until it answers again."""
        for pid in self.processes():
            if b"gunicorn" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        wait_for(self.answers, what="the web server's restart")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/alive/", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def logs(self) -> str:
        """The ends of its processes' own logs, for a failing test."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in (self.var / "log").glob("*.log"))


def processes_of(var: Path) -> list[int]:
    """Living processes whose environment names the directory; zombies hold nothing."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = f"FLEETADMIN_VAR={var}".encode() in (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if marked and state != "Z":
            found.append(int(entry.name))
    return found


@contextmanager
def application(
    var: Path, *, arguments: tuple[str, ...] = (), ready: str = "Ctrl-C ends", seconds: float = 60, **environment: str
) -> Iterator[Application]:
    """Run it on a free port until the block ends; nothing of it is left then. The block begins once it prints `ready`."""
    port = free_port()
    vendor = ROOT / "var" / "vendor"
    var.mkdir(parents=True, exist_ok=True)
    if vendor.exists() and not (var / "vendor").exists():
        (var / "vendor").symlink_to(vendor)
    env = {
        **os.environ,
        "FLEETADMIN_VAR": str(var),
        "DJANGO_SETTINGS_MODULE": "fleetadmin.settings.local",
        "PYTHONUNBUFFERED": "1",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", str(port), *arguments],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Application(url=f"http://127.0.0.1:{port}", var=var, process=process, env=env)
    reader = threading.Thread(target=lambda: running.output.extend(process.stdout), daemon=True)
    reader.start()
    try:
        wait_for(lambda: ready in "".join(running.output), seconds=seconds, what=f"{ready!r}")
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        reader.join(5)
        process.stdout.close()


def wait_for(check, *, seconds: float = 60, what: str = "it"):
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not come within {seconds:.0f} s"
        time.sleep(0.1)
