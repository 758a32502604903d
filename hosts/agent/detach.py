"""Starting the supervisor: a fresh interpreter, because a process with threads must not fork and go on.

The request, with its secrets, travels through the new process's stdin: never argv, never the environment,
never a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from typing import List

from .status_file import read_status
from .system import StartRequest

WAIT_S = 10.0
_POLL_S = 0.02
_ENTRY = "import sys; sys.path.insert(0, sys.argv[1]); from {package}.supervisor import main; main()"


def supervisor_command(launch_id: str) -> List[str]:
    """The interpreter that runs this code, on this code.

    Isolated by -I: nothing of the current directory or PYTHONPATH gets in.
    """
    package = __package__ or "agent"
    root = os.path.abspath(__file__)
    for _level in range(package.count(".") + 2):
        root = os.path.dirname(root)
    return [sys.executable, "-I", "-c", _ENTRY.format(package=package), root, "supervise", launch_id]


def start_supervisor(request: StartRequest) -> None:
    """Returns when status.json tells `running` or `exited`, at the latest after 10 s.

    Raises RuntimeError where the supervisor itself could not start.
    """
    payload = json.dumps({**asdict(request), "argv": list(request.argv)}).encode("utf-8")
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
    with subprocess.Popen(
        supervisor_command(request.launch_id),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
    ) as first:
        _none, errors = first.communicate(payload)
    if first.returncode != 0:
        text = errors.decode("utf-8", "replace")[-2000:]
        raise RuntimeError(f"the supervisor did not start (exit {first.returncode}): {text}")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        status = read_status(request.directory)
        if status is not None and status.state in ("running", "exited"):
            return
        time.sleep(_POLL_S)
