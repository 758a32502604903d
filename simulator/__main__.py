"""`python -m simulator --dir DIR --hosts SPEC.json | --preset demo`: serves simulated hosts until SIGTERM.

One JSON line per host on stdout as soon as it answers, then `{"ready": true, …}`. Dies with its parent.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from simulator.control import ControlServer
from simulator.fleet import DEFAULT_PORT, Fleet
from simulator.spec import PRESETS, HostSpec, read_hosts

PR_SET_PDEATHSIG = 1
DEMO_SPEED = 15.0  # a first start of all on a host in a quarter of a minute


def read_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator", description="Simulated GPU hosts behind real SSH servers.")
    parser.add_argument("--dir", type=Path, required=True, help="where hosts keep their keys, homes and models")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--hosts", type=Path, help="JSON list of hosts")
    source.add_argument("--preset", choices=sorted(PRESETS), default="demo")
    parser.add_argument("--port-base", type=int, default=DEFAULT_PORT, help="SSH port of every host")
    parser.add_argument("--network", type=int, default=77, help="second byte of the loopback addresses 127.N.0.x")
    parser.add_argument("--speed", type=float, default=DEMO_SPEED, help="how much faster than the recordings")
    return parser.parse_args(argv)


def die_with_parent() -> None:
    """SIGTERM to this process when the one that started it ends, however it ends (Linux)."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def allow_many_files() -> None:
    """Take what the hard limit gives: an instance needs a log and a socket."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def serve(arguments: argparse.Namespace, hosts: tuple[HostSpec, ...]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    fleet = Fleet(
        arguments.dir,
        hosts=hosts,
        speed=arguments.speed,
        port_base=arguments.port_base,
        network=arguments.network,
    )
    control = ControlServer(fleet)
    await fleet.start()
    port = await control.start()
    for line in fleet.describe():
        say(line)
    say(
        {
            "ready": True,
            "control": {"address": "127.0.0.1", "port": port, "file": str(fleet.directory / "control.json")},
        }
    )
    await stopped.wait()
    await control.stop()
    await fleet.stop()


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    die_with_parent()
    allow_many_files()
    try:
        hosts = read_hosts(arguments.hosts) if arguments.hosts else PRESETS[arguments.preset]
        asyncio.run(serve(arguments, hosts))
    except (OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
