"""Closing what broke a moment before: no error, and what waits for the end hears of it."""

from __future__ import annotations

import contextlib
import os

import pytest

from hosts.ssh.paramiko_channel import ParamikoChannel, give_up

# As paramiko tells that the socket is gone: between the look at it and the write.
BROKEN = [EOFError(), OSError(9, "Bad file descriptor"), BrokenPipeError(32, "Broken pipe"), ConnectionResetError()]


class Raw:
    """A library's channel whose connection has just broken."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.pipe = os.pipe()

    def fileno(self) -> int:
        return self.pipe[0]

    def settimeout(self, _timeout: float | None) -> None:
        pass

    def close(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
class TestClose:
    def test_of_a_channel_says_nothing_and_tells_its_owner_once(self, error):
        told = []
        channel = ParamikoChannel(
            Raw(error),
            translate=contextlib.nullcontext,
            is_alive=lambda: False,
            on_close=lambda: told.append(1),
            send_timeout=1.0,
            program="agent",
            address="gpu-a",
        )
        channel.close()
        channel.close()
        assert told == [1]

    def test_after_a_command_says_nothing(self, error):
        give_up(Raw(error))


def test_a_mistake_of_ours_is_not_swallowed():
    with pytest.raises(TypeError):
        give_up(Raw(TypeError("no channel")))
