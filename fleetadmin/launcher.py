"""Child processes that end with their parent, whatever ends it."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """Between fork and exec: the kernel sends SIGTERM when the launcher dies, by kill -9 too."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.setpgid(0, 0)


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def wait_for_port(address: str, port: int, *, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((address, port)) == 0:
                return True
        time.sleep(0.05)
    return False


@dataclass
class Child:
    name: str
    process: subprocess.Popen
    restarts: bool
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path


@dataclass
class Launcher:
    """Starts children with their output in a file each, restarts those that may, and ends all in reverse order."""

    log_dir: Path
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], restarts: bool = True) -> Child:
        log = self.log_dir / f"{name}.log"
        child = Child(name=name, process=self.spawn(argv, env, log), restarts=restarts, argv=argv, env=env, log=log)
        self.children.append(child)
        return child

    @staticmethod
    def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen:
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,  # noqa: PLW1509  (the launcher has one thread)
            )

    @staticmethod
    def spawn_attached(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen:
        """A child that prints where the launcher prints."""
        return subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)  # noqa: PLW1509

    def check(self) -> list[Child]:
        """Restart what ended; returns the children that did."""
        ended = [child for child in self.children if child.process.poll() is not None]
        for child in ended:
            if child.restarts:
                child.process = self.spawn(child.argv, child.env, child.log)
        return ended

    def stop(self, *, seconds: float = 12.0) -> None:
        for child in reversed(self.children):
            if child.process.poll() is None:
                child.process.terminate()
        end = time.monotonic() + seconds
        for child in reversed(self.children):
            try:
                child.process.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
