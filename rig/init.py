# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH113, PTH118, PTH123, PTH208, S108, T201 - speaks to the kernel
"""Process 1 of a rig host: mounts, then sshd, then reaps. Run by path in fresh namespaces; no package needed.

argv[1]   the host's directory: setup.json, sshd_config, host_key, authorized_keys, etc/, boot_id, machine_id
stdout    `mounted` when the mounts are made
stdin     a line when the network is there; its end ends the host, so a killed test leaves nothing
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

BIND, RECURSIVE, MOVE, READ_ONLY, REMOUNT = 4096, 16384, 8192, 1, 32
NO_SUID, NO_DEV = 2, 4
SSHD = "/usr/sbin/sshd"

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [text.encode() for text in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode()):
        code = ctypes.get_errno()
        raise OSError(code, f"mount {source} on {target}: {os.strerror(code)}")


def bind_read_only(source: str, target: str) -> None:
    mount(source, target, flags=BIND | RECURSIVE)
    mount("", target, flags=BIND | REMOUNT | READ_ONLY)


def make_mount_point(target: str, *, like: str) -> None:
    if os.path.isdir(like):
        Path(target).mkdir(parents=True, exist_ok=True)
    elif not os.path.exists(target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()


def stage_mounts(base: str, pairs: list[list[str]]) -> list[tuple[str, str]]:
    """Bind the sources out of the way before folders above them are covered."""
    staged = []
    for number, (source, target) in enumerate(pairs):
        place = f"{base}/stage/{number}"
        make_mount_point(place, like=source)
        mount(source, place, flags=BIND | RECURSIVE)
        staged.append((place, target))
    return staged


def cover(target: str, *, mode: str, size: str = "512m") -> None:
    mount("tmpfs", target, kind="tmpfs", flags=NO_SUID | NO_DEV, data=f"mode={mode},size={size}")


def hide_python() -> None:
    """Cover every Python on the usual path by a file that is not executable."""
    empty = "/run/rig/empty"
    Path(empty).touch(mode=0o644)
    for folder in ("/usr/bin", "/usr/local/bin"):
        for name in sorted(os.listdir(folder)):
            path = os.path.realpath(os.path.join(folder, name))
            if name.startswith(("python", "pypy")) and os.path.isfile(path) and os.access(path, os.X_OK):
                mount(empty, path, flags=BIND)


def make_mounts(base: str, setup: dict) -> None:
    staged = stage_mounts(base, setup["mounts"])
    files = os.open(base, os.O_PATH)
    mount("proc", "/proc", kind="proc")
    for name in setup["etc"]:
        mount(f"{base}/etc/{name}", f"/etc/{name}", flags=BIND)
    mount(f"{base}/boot_id", "/proc/sys/kernel/random/boot_id", flags=BIND)
    home = f"{base}/home"
    if setup["home_mib"] is not None:
        mount("tmpfs", home, kind="tmpfs", flags=NO_SUID | NO_DEV, data=f"size={setup['home_mib']}m,mode=755")
        own = Path(home) / setup["user"]
        own.mkdir(mode=0o700)
        os.chown(own, setup["uid"], setup["uid"])
    mount(home, "/home", flags=BIND)
    below = f"/proc/self/fd/{files}"
    cover("/run", mode="755")
    os.makedirs("/run/rig")
    mount(below, "/run/rig", flags=BIND | RECURSIVE)
    os.mkdir("/run/sshd", 0o755)
    cover("/tmp", mode="1777")
    cover("/dev/shm", mode="1777")
    cover("/root", mode="755")
    for place, target in staged:
        inside = place.replace(base, "/run/rig", 1)
        make_mount_point(target, like=inside)
        bind_read_only(inside, target)
    if not setup["python"]:
        hide_python()


def start_sshd() -> subprocess.Popen[bytes]:
    with open("/run/rig/sshd.log", "ab") as log:
        return subprocess.Popen(
            [SSHD, "-D", "-e", "-f", "/run/rig/sshd_config"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            start_new_session=True,
        )


def reap_until_told() -> None:
    """Wait for the end of stdin, taking the exit of whatever is handed to process 1."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready and not os.read(0, 64):
            return
        if woken in ready:
            os.read(woken, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main() -> None:
    base = sys.argv[1]
    setup = json.loads(Path(base, "setup.json").read_text())
    os.umask(0o022)
    os.environ.pop("NOTIFY_SOCKET", None)
    socket.sethostname(setup["name"])
    make_mounts(base, setup)
    print("mounted", flush=True)
    if not os.read(0, 64):
        return
    start_sshd()
    reap_until_told()


if __name__ == "__main__":
    main()
