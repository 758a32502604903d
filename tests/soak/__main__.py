"""Runs whose workers are killed with SIGKILL at every step boundary, one round after another, against a simulated host.

usage: python -m tests.soak [--rounds 50] [--paused] [--out FILE]

Each round is a start, a restart or a stop of two instances. A worker is a process of its own; it kills itself where the
round says, its lease (two seconds) runs out, and the next one goes on. With --paused it stops itself (SIGSTOP) and goes on
when another has ended the run: then nothing may change any more. After each round: the run succeeded, every launch
was started once and moved through each state once, what should live lives, and nothing else does, on the host and in
the ledgers. One JSON object a round to --out; exit code 1 where a round went wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

LEASE_SECONDS = 2
MOST_WORKERS = 6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--paused", action="store_true", help="SIGSTOP instead; it goes on once another has ended the run"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as directory:
        return soak(Path(directory), rounds=options.rounds, out=options.out, paused=options.paused)


def soak(directory: Path, *, rounds: int, out: Path | None, paused: bool) -> int:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "fleetadmin.settings.test",
        "TEST_DATABASE_URL": f"sqlite:///{directory}/soak.sqlite3",
        "FLEETADMIN_VAR": str(directory / "var"),
        "FLEETADMIN_RUN_LEASE_SECONDS": str(LEASE_SECONDS),
    }
    import django

    django.setup()
    from tests.soak.rounds import Soak
    from tests.soak.simulated import simulated_host

    began = time.monotonic()
    bad = 0
    with simulated_host(directory) as host:
        played = Soak(host, most_workers=MOST_WORKERS, lease_s=LEASE_SECONDS, paused=paused)
        for number in range(1, rounds + 1):
            row = played.play(number)
            bad += bool(row["wrong"])
            if out:
                with out.open("w" if number == 1 else "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if row["wrong"]:
                sys.stdout.write(json.dumps(row) + "\n")
        summary = {"rounds": rounds, "met": played.killed, "wrong": bad, "starts": host.starts()}
    sys.stdout.write(json.dumps({**summary, "seconds": round(time.monotonic() - began, 1)}) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
