"""The process that outlives the agent: it starts one launch, waits for it and writes status.json.

Everything is imported here, before it detaches: the archive this code comes from may be replaced while a
launch runs for weeks.

In this order: 1. read the request from stdin; 2. lock supervisor.lock, so that one launch has one supervisor
whatever happens to the agents that ask; 3. open the log; 4. detach; 5. `starting`; 6. start the process; 7.
`running`; 8. `exited`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import FrameType
from typing import Any, Dict, Optional

from .locks import try_lock
from .proc import read_process
from .state_root import make_private
from .status_file import STATUS_NAME, Status, write_status

SUPERVISOR_LOCK = "supervisor.lock"
STOP_WANTED = "stop-wanted"


def main() -> None:
    """Entry of the detached interpreter; the request is on stdin."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    lock = try_lock(os.path.join(request["directory"], SUPERVISOR_LOCK))
    if lock is None or os.path.exists(os.path.join(request["directory"], STATUS_NAME)):
        return  # another supervisor has this launch
    log = open_log(request["log_path"])
    if not detach():
        return
    signal.signal(signal.SIGHUP, _ignore)  # a handler, not SIG_IGN: exec would pass SIG_IGN on to vLLM
    signal.signal(signal.SIGINT, _ignore)
    supervise(request, log)
    os._exit(0)


def _ignore(_number: int, _frame: Optional[FrameType]) -> None:
    """The end of a login session is no reason to lose the exit code."""


def open_log(path: str) -> int:
    """The launch's own log: appended to, never truncated, no link followed."""
    directory = os.path.dirname(path)
    existing = directory
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    make_private(directory, below=existing)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def detach() -> bool:
    """Fork twice with a session in between.

    True in the process that stays, False in the one that was started.
    """
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return True


def supervise(request: Dict[str, Any], log: int) -> None:
    """Start the process, wait for it, keep status.json true."""
    directory = request["directory"]
    status = Status(
        launch_id=request["launch_id"], state="starting", started_at=time.time(), supervisor_pid=os.getpid()
    )
    write_status(directory, status)
    process = None
    try:
        if os.path.exists(os.path.join(directory, STOP_WANTED)):
            raise InterruptedError("a stop was asked for before the start")
        process = subprocess.Popen(
            request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=request["env"],
            cwd=request["cwd"],
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        write_status(directory, replace(status, state="exited", ended_at=time.time(), error=str(error)[:500]))
        return
    finally:
        request.pop("env", None)  # secrets are not kept for weeks in a process that no longer needs them
        os.close(log)
    found = read_process(process.pid)
    status = replace(
        status,
        state="running",
        pid=process.pid,
        sid=process.pid,
        start_time=found.start_time if found else None,
    )
    write_status(directory, status)
    code = process.wait()
    write_status(
        directory,
        replace(
            status,
            state="exited",
            exit_code=code if code >= 0 else None,
            exit_signal=-code if code < 0 else None,
            ended_at=time.time(),
        ),
    )
