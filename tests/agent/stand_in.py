"""A process tree shaped like vLLM's: leader, `VLLM::EngineCore`, resource tracker.

Like vLLM: the children share the leader's session; TERM to the leader ends the engine at once and exits 0;
KILL of the leader leaves the others; the tracker ignores TERM and ends by itself when the last of the others
is gone.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    options = read_options()
    {"leader": lead, "engine": work, "tracker": track}[options.part](options)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["leader", "engine", "tracker"], nargs="?", default="leader")
    parser.add_argument("--swallow-terms", type=int, default=0)
    parser.add_argument("--ignore-term", action="store_true", help="leader and engine")
    parser.add_argument("--exit-code", type=int)
    parser.add_argument("--exit-after", type=float, default=0.0)
    parser.add_argument("--say", action="append", default=[])
    parser.add_argument("--say-env", action="append", default=[])
    parser.add_argument("--shm", help="a segment that the engine maps and leaves behind")
    parser.add_argument("--port", type=int, help="bound, not listening, as vLLM does while it loads")
    parser.add_argument("--pipe", type=int)
    return parser.parse_args()


def lead(options: argparse.Namespace) -> None:
    for line in options.say:
        say(line)
    for name in options.say_env:
        say(f"{name}={os.environ.get(name)}")
    if options.exit_code is not None:
        time.sleep(options.exit_after)
        sys.exit(options.exit_code)
    held = socket.socket()
    if options.port:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", options.port))
    reading, writing = os.pipe()
    spawn("python -c from multiprocessing.resource_tracker import main;main(3)", "tracker", reading, [])
    os.close(reading)
    extra = ["--shm", options.shm] if options.shm else []
    engine = spawn("VLLM::EngineCore", "engine", writing, extra + ["--ignore-term"] * options.ignore_term)
    left = [options.swallow_terms]

    def on_term(_number: int, _frame: object) -> None:
        if options.ignore_term:
            return
        if left[0] > 0:
            left[0] -= 1
            say("TERM swallowed")
            return
        os.kill(engine.pid, signal.SIGKILL)  # not engine.kill(): the interrupted wait() holds its lock
        os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    say("ready")
    engine.wait()  # then exit code 0, as vLLM when its engine was killed


def spawn(title: str, part: str, pipe: int, extra: list[str]) -> subprocess.Popen[bytes]:
    """A child that shows `title` first in its command line; only it and the leader hold `pipe`."""
    arguments = [title, str(Path(__file__).resolve()), part, "--pipe", str(pipe), *extra]
    # Python looks for its library beside argv[0], which here is a title.
    environment = {**os.environ, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
    program = os.path.realpath(sys.executable)
    return subprocess.Popen(arguments, executable=program, pass_fds=[pipe], env=environment)


def work(options: argparse.Namespace) -> None:
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.shm:
        with Path("/dev/shm", options.shm).open("w+b") as segment:
            segment.truncate(4096)
            mapped = mmap.mmap(segment.fileno(), 4096)
        mapped[0:4] = b"busy"
        say("mapped")
    time.sleep(600)


def track(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.read(options.pipe, 1)  # ends when the leader and the engine are gone


if __name__ == "__main__":
    main()
