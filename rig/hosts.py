# ruff: noqa: PTH115, PTH208, S108 - names in /proc and folders of the host
"""Hosts for tests: real OpenSSH in namespaces on this machine. Needs root and changes nothing that stays.

    with hosts(2, mounts=["/opt/vllm"]) as rig:
        rig[0].address, rig[0].port, rig[0].user, rig[0].private_key, rig[0].host_key
        rig[0].run(["id"])

Each host has its own net, pid, mount, ipc and uts namespace, /proc, /tmp, /dev/shm, /run, home, account
`fleet` (uid 2000), machine id, boot id, host key and sshd on port 22. /root is empty there but for what
`mounts` puts there.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rig.network import HOSTS_PER_RIG, Slot, Switch, take_slot, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USER = "fleet"
UID = 2000
PORT = 22
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "ssh-keygen", "/usr/sbin/sshd")
ETC = ("passwd", "shadow", "group", "machine-id", "hostname", "hosts")

SSHD_CONFIG = """\
Port 22
ListenAddress 0.0.0.0
HostKey /run/rig/host_key
AuthorizedKeysFile /run/rig/authorized_keys
PidFile /run/sshd.pid
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
PrintMotd no
ClientAliveInterval 15
"""


@dataclass(frozen=True)
class Setup:
    """How a host is made.

    `mounts`: (source, target), read-only; `sshd`: further lines, which win over ours.
    """

    mounts: tuple[tuple[str, str], ...] = ()
    python: bool = True
    sshd: tuple[str, ...] = ()
    home_mib: int | None = None
    host_key_kind: str = "ed25519"


@dataclass(frozen=True)
class ProcessRow:
    """A process as the host sees it; `outer_pid` is the one of this machine."""

    pid: int
    outer_pid: int
    uid: int
    state: str
    title: str


def why_impossible() -> str | None:
    """Tell what is missing for a rig, None when nothing is; tests skip with this reason."""
    if sys.platform != "linux":
        return "a rig needs Linux"
    if os.geteuid() != 0:
        return "a rig needs root (namespaces, mounts, an sshd on port 22)"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"a rig needs {', '.join(missing)} (openssh-server, iproute2, util-linux)" if missing else None


@dataclass
class RigHost:
    """One running host."""

    slot: Slot
    switch: Switch
    number: int
    setup: Setup
    directory: Path
    private_key: str = field(repr=False)
    _unshare: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _pid: int = 0

    port = PORT
    user = USER
    uid = UID

    @property
    def name(self) -> str:
        return f"rig{self.slot.number}-{self.number}"

    @property
    def address(self) -> str:
        return self.slot.address(self.number)

    @property
    def host_key(self) -> str:
        """The public host key, `KIND BASE64`."""
        return " ".join((self.directory / "host_key.pub").read_text().split()[:2])

    @property
    def boot_id(self) -> str:
        return (self.directory / "boot_id").read_text().strip()

    @property
    def machine_id(self) -> str:
        return (self.directory / "etc/machine-id").read_text().strip()

    @property
    def home(self) -> Path:
        """The account's home as this machine sees it (not with `home_mib`: use `path`)."""
        return self.path(f"/home/{USER}")

    def path(self, inside: str) -> Path:
        """Give a path of the host as this machine reaches it, valid while the host runs."""
        return Path(f"/proc/{self._pid}/root{inside}")

    @property
    def network_namespace(self) -> Path:
        return Path(f"/proc/{self._pid}/ns/net")

    def start(self) -> None:
        """Boot it; sshd answers afterwards."""
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        script = Path(__file__).with_name("init.py")
        namespaces = ("--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child=KILL")
        self._unshare = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "unshare",
                *namespaces,
                sys.executable,
                "-I",
                script,
                self.directory,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.directory / "init.log").open("wb"),
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )
        hears, speaks = self._unshare.stdin, self._unshare.stdout
        if hears is None or speaks is None or speaks.readline() != b"mounted\n":
            self._unshare.wait(10)
            raise RuntimeError(f"{self.name} did not start: {(self.directory / 'init.log').read_text()}")
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        self._pid = int(children[0])
        self.switch.plug_in(self.number, pid=self._pid, address=self.address)
        hears.write(b"go\n")
        hears.flush()
        wait_until(self._answers, seconds=15)
        # That look was a connection too, and sshd counts it (MaxStartups) until its process is gone.
        wait_until(lambda: len(self.processes()) == 1, seconds=15)

    def stop(self) -> None:
        """Pull the plug: every process of it is killed, its namespaces and cable are gone."""
        if self._unshare is None:
            return
        if self._pid:
            pid_directory = Path(f"/proc/{self._pid}")
            os.kill(self._pid, signal.SIGKILL)
            wait_until(lambda: not pid_directory.exists(), seconds=20)
        self._unshare.kill()
        self._unshare.wait(10)
        for pipe in (self._unshare.stdin, self._unshare.stdout):
            if pipe is not None:
                pipe.close()
        self._unshare, self._pid = None, 0

    def reboot(self) -> None:
        """Go down without warning and come back with a new boot id. Home and machine id stay."""
        self.stop()
        self.start()

    def replace_host_key(self) -> None:
        """Give sshd another key, as a reinstallation would."""
        make_key_pair(self.directory / "host_key", kind=self.setup.host_key_kind)
        self.run(["/bin/sh", "-c", 'kill -HUP "$(cat /run/sshd.pid)"'])
        wait_until(self._answers, seconds=15)

    def cut_link(self) -> None:
        """Let every packet to and from it vanish."""
        self.switch.set_cable(self.number, up=False)

    def restore_link(self) -> None:
        self.switch.set_cable(self.number, up=True)

    def run(self, argv: Sequence[str], *, check: bool = True) -> str:
        """Run a command in it as root and give its stdout; RuntimeError when it fails and `check`."""
        inside = ["nsenter", "-t", str(self._pid), "-m", "-p", "-n", "-i", "-u", "--"]
        done = subprocess.run([*inside, *argv], capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def processes(self) -> list[ProcessRow]:
        """Give all its processes but the first, by pid."""
        namespace = os.readlink(f"/proc/{self._pid}/ns/pid")
        rows = (read_process(int(name), namespace) for name in os.listdir("/proc") if name.isdigit())
        return sorted((row for row in rows if row is not None and row.pid != 1), key=lambda row: row.pid)

    def shm(self) -> list[str]:
        """Give the names in its /dev/shm."""
        return sorted(os.listdir(self.path("/dev/shm")))

    def sshd_log(self) -> str:
        return (self.directory / "sshd.log").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, PORT), timeout=1) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False


def read_process(pid: int, namespace: str) -> ProcessRow | None:
    """Read a process of this machine, None when it is not of that pid namespace or has just gone."""
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != namespace:
            return None
        status = Path(f"/proc/{pid}/status").read_text()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return ProcessRow(
        pid=int(fields["NSpid"].split()[-1]),
        outer_pid=pid,
        uid=int(fields["Uid"].split()[0]),
        state=fields["State"][0],
        title=title or f"[{fields['Name']}]",
    )


def make_key_pair(path: Path, *, kind: str = "ed25519") -> str:
    """Make a key without passphrase, replacing what is there; give the private text."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "rig", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=30)
    return path.read_text()


def write_files(directory: Path, *, name: str, public_key: str, setup: Setup) -> None:
    """Lay out a host's directory: configuration, keys, its own /etc files and home."""
    (directory / "etc").mkdir(parents=True)
    (directory / "stage").mkdir()
    home = directory / "home" / USER
    home.mkdir(parents=True)
    home.chmod(0o700)
    os.chown(home, UID, UID)
    (directory / "sshd_config").write_text("\n".join(setup.sshd) + "\n" + SSHD_CONFIG)
    (directory / "authorized_keys").write_text(public_key)
    make_key_pair(directory / "host_key", kind=setup.host_key_kind)
    own = {
        "passwd": Path("/etc/passwd").read_text() + f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash\n",
        "group": Path("/etc/group").read_text() + f"{USER}:x:{UID}:\n",
        # `*`, not `!`: an account with `!` is locked for sshd without PAM.
        "shadow": f"root:*:19000:0:99999:7:::\nsshd:*:19000::::::\n{USER}:*:19000:0:99999:7:::\n",
        "machine-id": secrets.token_hex(16) + "\n",
        "hostname": f"{name}\n",
        "hosts": f"127.0.0.1 localhost {name}\n",
    }
    present = [entry for entry in ETC if Path("/etc", entry).exists()]
    for entry in present:
        (directory / "etc" / entry).write_text(own[entry])
    (directory / "etc/shadow").chmod(0o600)
    plan = {
        "name": name,
        "user": USER,
        "uid": UID,
        "etc": present,
        "mounts": [list(pair) for pair in setup.mounts],
        "python": setup.python,
        "home_mib": setup.home_mib,
    }
    (directory / "setup.json").write_text(json.dumps(plan))


@contextmanager
def hosts(
    count: int,
    *,
    mounts: Sequence[str | tuple[str, str]] = (),
    python: bool = True,
    sshd: Sequence[str] = (),
    home_mib: int | None = None,
    host_key_kind: str = "ed25519",
) -> Iterator[list[RigHost]]:
    """Run `count` hosts (13 at most); all of them are gone afterwards, also when this process is killed.

    `mounts`: paths, or (source, target), bound read-only. `python` False: no Python on the usual path.
    `sshd`: lines of sshd_config, e.g. "MaxStartups 2:100:2". `home_mib`: the home is a tmpfs of that size,
    which a reboot empties. Errors: RuntimeError naming what is missing (`why_impossible`).
    """
    missing = why_impossible()
    if missing is not None:
        raise RuntimeError(missing)
    if not 1 <= count <= HOSTS_PER_RIG:
        raise ValueError(f"1 to {HOSTS_PER_RIG} hosts")
    pairs = tuple((entry, entry) if isinstance(entry, str) else entry for entry in mounts)
    setup = Setup(pairs, python, tuple(sshd), home_mib, host_key_kind)
    slot = take_slot()
    started: list[RigHost] = []
    switch = None
    try:
        private_key = make_key_pair(slot.directory / "login_key")
        public_key = (slot.directory / "login_key.pub").read_text()
        switch = Switch(slot)
        for number in range(count):
            directory = slot.directory / f"host-{number}"
            host = RigHost(slot, switch, number, setup, directory, private_key)
            write_files(directory, name=host.name, public_key=public_key, setup=setup)
            started.append(host)
            host.start()
        yield started
    finally:
        for host in started:
            host.stop()
        if switch is not None:
            switch.end()
        slot.release()
