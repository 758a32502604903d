"""exec on an open SSH connection: how long, with and without TCP_NODELAY.

    python perf/ssh_exec.py [--execs 200] [--rounds 3]

Against OpenSSH of a rig host (rig/hosts.py), over that host's loopback, as a plain user: root's shell
start-up files would be measured otherwise. Needs root for the rig. Other programs on the machine only ever
add time, so of several rounds the fastest counts; all medians are reported. Writes
perf/results/ssh_exec.json (raw figures included) and prints the same; bar: 2.5 ms median.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hosts.ssh.command import Command
from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits
from hosts.ssh.paramiko_runner import connect
from rig.hosts import RigHost, hosts, why_impossible

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).resolve().parent / "results" / "ssh_exec.json"
BAR_MS = 2.5
WARM_UP = 20


@contextmanager
def enter_network(host: RigHost) -> Iterator[None]:
    """Let sockets made by this thread be of the host's network, so that 127.0.0.1 is its loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as own, host.network_namespace.open() as other:
        if libc.setns(other.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(own.fileno(), 0)


def measure(endpoint: Endpoint, *, execs: int, no_delay: bool) -> dict[str, Any]:
    """Milliseconds of each exec of `true` on one open connection, warm."""
    began = time.perf_counter()
    runner = connect(endpoint, limits=Limits(), no_delay=no_delay)
    connected = (time.perf_counter() - began) * 1000
    command = Command(argv=("true",))
    times = []
    try:
        for number in range(WARM_UP + execs):
            began = time.perf_counter()
            result = runner.run(command)
            took = (time.perf_counter() - began) * 1000
            if not result.ok:
                raise RuntimeError(f"exec failed: {result}")
            if number >= WARM_UP:
                times.append(round(took, 4))
    finally:
        runner.close()
    return {
        "median_ms": round(statistics.median(times), 3),
        "p95_ms": round(statistics.quantiles(times, n=20)[18], 3),
        "connect_ms": round(connected, 1),
        "execs": len(times),
        "raw_ms": times,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    missing = why_impossible()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    with hosts(1) as rig, enter_network(rig[0]):
        key, host_key = KeyAuth(rig[0].private_key), HostKey.parse(rig[0].host_key)
        endpoint = Endpoint("127.0.0.1", rig[0].port, rig[0].user, host_key, key)
        rounds = [measure(endpoint, execs=asked.execs, no_delay=True) for _ in range(asked.rounds)]
        without = measure(endpoint, execs=asked.execs, no_delay=False)
    with_option = min(rounds, key=lambda measured: measured["median_ms"])
    median = with_option["median_ms"]
    report = {
        "what": "exec of `true` on an open connection, paramiko against OpenSSH on loopback, plain user",
        "measured_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "bar_ms": BAR_MS,
        "met": median <= BAR_MS,
        "medians_of_rounds_ms": [measured["median_ms"] for measured in rounds],
        "ratio_without_nodelay": round(without["median_ms"] / median, 1),
        "with_tcp_nodelay": with_option,
        "without_tcp_nodelay": without,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report) + "\n")
    print(json.dumps(report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
