from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.call import Options
from hosts.agent.linux import LinuxSystem
from hosts.agent.system import Process
from tests.agent.channel import Channel, open_in_thread

Opener = Callable[..., Channel]


@pytest.fixture
def state_root(tmp_path: Path) -> Iterator[Path]:
    """A state root; whatever was launched in it is dead afterwards."""
    root = tmp_path / "state"
    yield root
    while left := [process for process in LinuxSystem().processes() if is_of_this_run(process)]:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def is_of_this_run(process: Process) -> bool:
    """By its marker alone: a test may have removed what the state root knew of it."""
    return not process.gone and (process.marker or "").endswith(f"-{os.getpid()}")


@pytest.fixture
def open_agent(state_root: Path, tmp_path: Path) -> Iterator[Opener]:
    """Opens agents in threads of this process: open_agent(system=…, controller=…, state_root=…)."""
    opened: list[tuple[Channel, Any]] = []

    def open_one(
        system: LinuxSystem | None = None,
        *,
        controller: str = "c1",
        root: Path | None = None,
        log_root: Path | None = None,
    ) -> Channel:
        options = Options(
            controller=controller,
            state_root=str(root or state_root),
            log_root=str(log_root) if log_root else None,
            temp_root=str(tmp_path),
        )
        channel, thread = open_in_thread(system or LinuxSystem(), options)
        channel.controller = controller
        opened.append((channel, thread))
        return channel

    yield open_one
    for channel, thread in opened:
        channel.close_stdin()
        thread.join(10)
        assert not thread.is_alive(), "the agent did not end with its stdin"


@pytest.fixture
def agent(open_agent: Opener) -> Channel:
    return open_agent()
