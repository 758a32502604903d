"""The other end of the agent's lines, for tests: over pipes to a thread or to a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hosts.agent.call import Options
from hosts.agent.linux import LinuxSystem
from hosts.agent.server import serve

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
REPOSITORY = Path(__file__).parents[2]
ANSWER_S = 20.0
# A marker is told apart by the launch id alone: two runs of these tests on one machine must not share any.
L0, L1, L2 = (f"L{number}-{os.getpid()}" for number in range(3))


class Channel:
    """Sends requests and collects answers by request id."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer = reader, writer
        self._count = 0
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._arrived = threading.Condition()
        self.closed = False
        self.attempt = 1
        self.controller = "c1"
        self.launched: list[str] = []
        threading.Thread(target=self._collect, daemon=True).start()
        self.hello = self.wait_for("", bool)[0]["body"]

    def _collect(self) -> None:
        for line in self._reader:
            answer = json.loads(line)
            with self._arrived:
                self._answers.setdefault(answer["id"], []).append(answer)
                self._arrived.notify_all()
        with self._arrived:
            self.closed = True
            self._arrived.notify_all()

    def wait_for(self, request_id: str, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The answers to a request so far, once `wanted` holds of them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: wanted(self._answers.get(request_id, [])), ANSWER_S), (
                f"no such answer to {request_id!r}: {self._answers.get(request_id)}"
            )
            return list(self._answers.get(request_id, []))

    def send_raw(self, line: bytes) -> None:
        self._writer.write(line + b"\n")
        self._writer.flush()

    def begin(self, verb: str, **args: Any) -> str:
        self._count += 1
        request_id = str(self._count)
        fence = {"controller": self.controller, "run": "r1", "attempt": self.attempt}
        line = {"v": 1, "id": request_id, "verb": verb, "args": args, "fence": fence}
        self.send_raw(json.dumps(line).encode())
        if verb == "launch":
            self.launched.append(str(args.get("launch_id")))
        return request_id

    def finish(self, request_id: str) -> list[dict[str, Any]]:
        return self.wait_for(request_id, lambda found: bool(found) and found[-1]["kind"] in ("result", "refusal"))

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        """The result's body."""
        last = self.finish(self.begin(verb, **args))[-1]
        assert last["kind"] == "result", last["body"]
        return dict(last["body"])

    def refused(self, verb: str, **args: Any) -> dict[str, Any]:
        """The refusal's body."""
        last = self.finish(self.begin(verb, **args))[-1]
        assert last["kind"] == "refusal", last["body"]
        return dict(last["body"])

    def events(self, request_id: str) -> list[dict[str, Any]]:
        with self._arrived:
            return [answer["body"] for answer in self._answers.get(request_id, []) if answer["kind"] == "event"]

    def launch(self, launch_id: str, *options: str, slot: str = "s1", **args: Any) -> dict[str, Any]:
        """Start the stand-in."""
        argv = [sys.executable, STAND_IN, *options]
        return self.ask("launch", **{"launch_id": launch_id, "instance": "i1", "slot": slot, "argv": argv, **args})

    def wait_status(self, launch_id: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The launch's view once `wanted` holds of it."""
        until = time.monotonic() + ANSWER_S
        while True:
            view = self.ask("status", launch_id=launch_id)
            if wanted(view):
                return view
            assert time.monotonic() < until, view
            time.sleep(0.05)

    def wait_tree(self, launch_id: str) -> dict[str, Any]:
        """The view once leader, engine and tracker are up and the leader handles TERM."""
        # A process that was just forked has its parent's title until it sets its own.
        whole = {"api_server", "engine_core", "resource_tracker"}
        view = self.wait_status(launch_id, lambda view: set(by_role(view)) == whole and has_line(view, "ready"))
        return by_role(view)

    def close_stdin(self) -> None:
        self._writer.close()


def has_line(view: dict[str, Any], line: str) -> bool:
    return line in Path(view["log_path"]).read_text("utf-8", "replace").splitlines()


def by_role(view: dict[str, Any]) -> dict[str, Any]:
    return {process["role"]: process for process in view["processes"]}


def is_alive(pid: int) -> bool:
    process = LinuxSystem().process(pid)
    return process is not None and not process.gone


def wait_gone(*pids: int, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < until, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.02)


def open_in_thread(system: LinuxSystem, options: Options) -> tuple[Channel, threading.Thread]:
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    stdin, stdout = os.fdopen(to_read, "rb"), os.fdopen(from_write, "wb")

    def run() -> None:
        serve(system, stdin, stdout, options)
        stdin.close()
        stdout.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return Channel(os.fdopen(from_read, "rb"), os.fdopen(to_write, "wb")), thread


def open_process(command: Sequence[str]) -> tuple[Channel, subprocess.Popen[bytes]]:
    process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)
    return Channel(process.stdout, process.stdin), process


def agent_command(state_root: Path, *, controller: str = "c1") -> list[str]:
    return [
        sys.executable,
        "-m",
        "hosts.agent",
        "serve",
        "--controller",
        controller,
        "--state-root",
        str(state_root),
    ]
