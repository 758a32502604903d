"""PYTHON agent-HASH.pyz serve --controller ID [--state-root DIR] [--log-root DIR]."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from typing import List, Optional

from .call import Options
from .linux import LinuxSystem
from .server import serve


def read_options(arguments: Optional[List[str]] = None) -> Options:
    """The command line; argparse ends the program with code 2 where it makes no sense."""
    parser = argparse.ArgumentParser(prog="agent", description="Serve one channel of JSON lines on stdin and stdout.")
    verbs = parser.add_subparsers(dest="command", required=True)
    command = verbs.add_parser("serve", help="serve stdin and stdout until stdin ends")
    command.add_argument("--controller", required=True, help="id of the installation this agent serves")
    command.add_argument("--state-root", help="directory for the state, default ~/.fleetadmin")
    command.add_argument("--log-root", help="directory for the logs, default STATE_ROOT/logs")
    found = parser.parse_args(arguments)
    return Options(
        controller=found.controller,
        state_root=found.state_root,
        log_root=found.log_root,
        agent_hash=find_own_hash(),
    )


def find_own_hash() -> str:
    """The archive's name carries its hash; what runs is what is hashed. `source` outside an archive."""
    archive = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        with open(archive, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()[:16]
    except OSError:  # a directory
        return "source"


def main() -> None:
    options = read_options()
    os.umask(0o077)
    # Whatever a library prints must not get between the lines: stdout is kept for them alone.
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(LinuxSystem(), sys.stdin.buffer, lines, options)
    # Threads that hang in the kernel (a wedged driver) must not keep the agent alive.
    os._exit(0)


if __name__ == "__main__":
    main()
