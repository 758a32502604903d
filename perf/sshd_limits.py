"""What one OpenSSH as it is shipped puts up with: sign-ins at once, forwards and sessions of one connection.

    python perf/sshd_limits.py [--sign-ins 500] [--forwards 2000]

Against a rig host (rig/hosts.py), as root. Sign-ins are made by one process, all asked for at once, with the bound of
hosts/ssh/admission.py and without it. Forwards (direct-tcpip, what a jump over a bastion is made of) go to a listener
of this machine, first with the usual number of open files, then with 1024. Writes perf/results/sshd_limits.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hosts.ssh import paramiko_runner
from hosts.ssh.admission import IN_ALL, PER_SERVER, Admission
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits
from hosts.ssh.errors import SshError
from hosts.ssh.paramiko_runner import ParamikoRunner, connect
from rig.hosts import RigHost, hosts, why_impossible

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).resolve().parent / "results" / "sshd_limits.json"
MOST_FILES = 20_000


def endpoint_of(host: RigHost) -> Endpoint:
    return Endpoint(host.address, host.port, host.user, HostKey.parse(host.host_key), KeyAuth(host.private_key))


def measure_sign_ins(count: int, *, per_server: int, in_all: int) -> dict[str, Any]:
    """Sign in `count` times, all asked for at once, with these bounds; no retries."""
    paramiko_runner.ADMISSION = Admission(per_server=per_server, in_all=in_all)
    with hosts(1) as rig:
        endpoint = endpoint_of(rig[0])

        def sign_in(_number: int) -> ParamikoRunner | str:
            try:
                return connect(endpoint, limits=Limits())
            except SshError as error:
                return error.code

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            outcomes = list(pool.map(sign_in, range(count)))
        took = time.perf_counter() - began
        lines = rig[0].sshd_log().splitlines()
        for outcome in outcomes:
            if not isinstance(outcome, str):
                outcome.close()
    codes = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return {
        "asked": count,
        "per_server": per_server,
        "in_all": in_all,
        "signed_in": count - len(codes),
        "errors": {code: codes.count(code) for code in sorted(set(codes))},
        "log_throttling": sum("MaxStartups" in line for line in lines),
        "log_drops": sum("drop connection" in line for line in lines),
        "seconds": round(took, 2),
    }


def open_until_refused(limit: int, make: Callable[[], object]) -> dict[str, Any]:
    """Open channels and keep them: how many there were, and the code of the refusal."""
    kept: list[object] = []
    try:
        while len(kept) < limit:
            kept.append(make())
    except paramiko.ChannelException as refusal:
        return {"opened": len(kept), "refusal": refusal.code}
    return {"opened": len(kept), "refusal": None}


def measure_channels(forwards: int, *, files: int) -> dict[str, Any]:
    """Forwards over one connection, then sessions beside them; sshd has `files` open files at most."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, MOST_FILES))
    with hosts(1) as rig:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
        runner = connect(endpoint_of(rig[0]))
        transport = runner._transport  # noqa: SLF001 - a Runner opens sessions only
        taken: list[socket.socket] = []
        with socket.create_server((rig[0].slot.controller, 0), backlog=1024) as listener:
            threading.Thread(target=accept_all, args=(listener, taken), daemon=True).start()
            target = listener.getsockname()[:2]
            through = open_until_refused(
                forwards, lambda: transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=10)
            )
            beside = open_until_refused(20, lambda: transport.open_session(timeout=10))
            runner.close()
            listener.shutdown(socket.SHUT_RDWR)
        for sock in taken:
            sock.close()
    return {"files": files, "forwards": through, "sessions_beside": beside}


def accept_all(listener: socket.socket, taken: list[socket.socket]) -> None:
    while True:
        try:
            taken.append(listener.accept()[0])
        except OSError:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sign-ins", type=int, default=500)
    parser.add_argument("--forwards", type=int, default=2000)
    asked = parser.parse_args()
    missing = why_impossible()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    bounded = measure_sign_ins(asked.sign_ins, per_server=PER_SERVER, in_all=IN_ALL)
    report = {
        "what": "sign-ins at once, forwards and sessions of one connection, at one OpenSSH as shipped",
        "measured_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "openssh": subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.strip(),
        "paramiko": paramiko.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "met": bounded["signed_in"] == asked.sign_ins and not bounded["log_throttling"] + bounded["log_drops"],
        "bounded": bounded,
        "unbounded": measure_sign_ins(asked.sign_ins, per_server=asked.sign_ins, in_all=asked.sign_ins),
        "channels": [measure_channels(asked.forwards, files=files) for files in (MOST_FILES, 1024)],
    }
    RESULTS.write_text(json.dumps(report) + "\n")
    print(json.dumps(report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
