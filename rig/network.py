# ruff: noqa: PTH115 - links in /proc
"""Addresses and cables of a rig: a switch in a namespace of its own, a cable to the controller, one per host.

Everything hangs on processes: when they end, the kernel takes namespaces, cables and addresses away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

BASE = Path("/var/tmp/fleetadmin-rig")  # noqa: S108 - owned by root, 0755, checked in take_slot
SLOTS = 16  # of 16 addresses each in 10.213.0.0/24
HOSTS_PER_RIG = 13


def call(*argv: str, pid: int | None = None) -> str:
    """Run a command, inside the network namespace of `pid` where given, and give its output."""
    inside = ("nsenter", "-t", str(pid), "-n", "--") if pid is not None else ()
    done = subprocess.run([*inside, *argv], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@dataclass
class Slot:
    """A sixteenth of 10.213.0.0/24, held by a lock as long as this process lives."""

    number: int
    lock: int
    directory: Path

    def address(self, host: int) -> str:
        return f"10.213.0.{16 * self.number + 2 + host}"

    @property
    def controller(self) -> str:
        return f"10.213.0.{16 * self.number + 1}"

    def release(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self.lock)


def take_slot() -> Slot:
    """Take a free slot and sweep what a killed rig left in it (files only: all else ended with it)."""
    BASE.mkdir(mode=0o755, exist_ok=True)
    if BASE.stat().st_uid != 0 or BASE.is_symlink():
        raise RuntimeError(f"{BASE} is not root's")
    for number in range(SLOTS):
        lock = os.open(BASE / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        directory = BASE / f"slot-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o755)
        return Slot(number=number, lock=lock, directory=directory)
    raise RuntimeError(f"all {SLOTS} slots are taken by other rigs")


@dataclass
class Switch:
    """A bridge in a namespace held by one sleeping process."""

    slot: Slot
    holder: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )
        try:
            self._lay_cables()
        except BaseException:
            self.end()
            raise

    @property
    def cable(self) -> str:
        """The controller's end. The slot's lock makes the name ours."""
        return f"farig{self.slot.number}"

    def _remove_cable(self) -> None:
        if Path("/sys/class/net", self.cable).exists():
            with contextlib.suppress(RuntimeError):
                call("ip", "link", "delete", self.cable)

    def _lay_cables(self) -> None:
        wait_for_namespace(self.holder.pid)
        pid, cable = self.holder.pid, self.cable
        self._remove_cable()  # the kernel takes a moment to remove that of a killed rig
        call("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", pid=pid)
        call("ip", "link", "set", "br0", "up", pid=pid)
        call("ip", "link", "add", cable, "type", "veth", "peer", "name", "up0", "netns", str(pid))
        call("ip", "link", "set", "up0", "master", "br0", "up", pid=pid)
        call("ip", "address", "add", f"{self.slot.controller}/28", "dev", cable)
        call("ip", "link", "set", cable, "up")

    def plug_in(self, number: int, *, pid: int, address: str) -> None:
        """Lay a cable from the switch to the network namespace of `pid`.

        The hardware address stays the same over a reboot: the controller remembers it for a while.
        """
        here = self.holder.pid
        hardware = f"02:fa:00:00:{self.slot.number:02x}:{number:02x}"
        peer = ("name", "eth0", "address", hardware, "netns", str(pid))
        call("ip", "link", "add", f"h{number}", "type", "veth", "peer", *peer, pid=here)
        call("ip", "link", "set", f"h{number}", "master", "br0", "up", pid=here)
        call("ip", "link", "set", "lo", "up", pid=pid)
        call("ip", "address", "add", f"{address}/28", "dev", "eth0", pid=pid)
        call("ip", "link", "set", "eth0", "up", pid=pid)

    def set_cable(self, number: int, *, up: bool) -> None:
        call("ip", "link", "set", f"h{number}", "up" if up else "down", pid=self.holder.pid)

    def end(self) -> None:
        self._remove_cable()
        self.holder.kill()
        self.holder.wait(10)


def wait_for_namespace(pid: int) -> None:
    """Wait until `pid` has left this process's network namespace."""
    own = os.readlink("/proc/self/ns/net")
    wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, seconds=10)


def wait_until(condition, *, seconds: float) -> None:
    """Look every 5 ms; TimeoutError after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the rig did not get ready")
        time.sleep(0.005)
