# ruff: noqa: T201 - a command prints
"""`python -m rig up N [--mount PATH]… | down`: hosts that stay until they are taken down, e.g.

for a try by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rig.hosts import hosts, why_impossible
from rig.network import BASE

KEPT = BASE / "kept.json"
LOG = BASE / "keeper.log"


def keep(count: int, mounts: list[str]) -> None:
    """Run hosts until SIGTERM; the keeper of `up`."""
    with hosts(count, mounts=mounts) as started:
        rows = [
            {
                "address": host.address,
                "port": host.port,
                "user": host.user,
                "host_key": host.host_key,
                "key_file": str(host.slot.directory / "login_key"),
            }
            for host in started
        ]
        KEPT.write_text(json.dumps({"keeper": os.getpid(), "started": start_time(os.getpid()), "hosts": rows}))
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        KEPT.unlink(missing_ok=True)


def start_time(pid: int) -> str | None:
    """Clock ticks since boot, so that a pid used again is not taken for the keeper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def read_kept() -> dict | None:
    """Give what `up` left, None where its keeper no longer lives."""
    try:
        kept = json.loads(KEPT.read_text())
    except (OSError, ValueError):
        return None
    return kept if start_time(kept["keeper"]) == kept["started"] else None


def up(count: int, mounts: list[str]) -> int:
    if read_kept() is not None:
        print("A rig is up already; `python -m rig down` first.", file=sys.stderr)
        return 1
    KEPT.unlink(missing_ok=True)
    options = [word for path in mounts for word in ("--mount", path)]
    BASE.mkdir(mode=0o755, exist_ok=True)
    log = LOG.open("wb")  # not this command's stderr: whoever reads that would wait for the keeper's end
    keeper = subprocess.Popen(
        [sys.executable, "-m", "rig", "keep", str(count), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
    )
    log.close()
    while not KEPT.exists():
        if keeper.poll() is not None:
            print(LOG.read_text(), file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(json.dumps(json.loads(KEPT.read_text())["hosts"], indent=2))
    return 0


def down() -> int:
    kept = read_kept()
    if kept is None:
        print("No rig is up.", file=sys.stderr)
        return 1
    os.kill(kept["keeper"], signal.SIGTERM)
    while start_time(kept["keeper"]) == kept["started"]:
        time.sleep(0.05)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("up", "keep"):
        verb = verbs.add_parser(name)
        verb.add_argument("count", type=int)
        verb.add_argument("--mount", action="append", default=[])
    verbs.add_parser("down")
    asked = parser.parse_args()
    missing = why_impossible()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    if asked.verb == "down":
        return down()
    if asked.verb == "up":
        return up(asked.count, asked.mount)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    keep(asked.count, asked.mount)
    return 0


if __name__ == "__main__":
    sys.exit(main())
