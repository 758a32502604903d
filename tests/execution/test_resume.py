"""Wherever a worker dies while it follows a start, what it told last is enough for the next one to see the end of it."""

import pytest

from deployments.execution.limits import Limits
from deployments.execution.start import Resume, Roots, StartOne
from deployments.planning.phases import advance
from tests.planning.samples_reader import SAMPLES

LOGS = ["h200/start-cold.log", "h200/at-once-9090.log", "cpu/startup.log"]


class Told:
    """Keeps what the listener was told of a start."""

    def __init__(self):
        self.progress_told = []
        self.phases = []

    def log(self, *_args, **_kwargs):
        pass

    def phase_seen(self, _launch_id, progress):
        self.phases.append(progress.phase)

    def progress(self, _launch_id, progress, *, offset):
        self.progress_told.append((progress, offset))


def pieces_of(data: bytes, size: int):
    """The log as the agent sends it: whole lines, some of them in one piece."""
    lines = [line + b"\n" for line in data.removesuffix(b"\n").split(b"\n")]
    offset = 0
    for start in range(0, len(lines), size):
        piece = b"".join(lines[start : start + size])
        yield {"offset": offset, "next": offset + len(piece), "text": piece.decode("utf-8", "replace")}
        offset += len(piece)


def follow(data: bytes, size: int) -> tuple[StartOne, Told]:
    told = Told()
    start = StartOne(
        session=None,
        launch={"launch_id": "a"},
        fence={},
        secrets={},
        listener=told,
        clock=None,
        limits=Limits(),
        resume=Resume(),
        roots=Roots(),
    )
    for piece in pieces_of(data, size):
        start.take(piece)
    return start, told


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("size", [1, 3, 17, 10_000])
def test_the_next_worker_comes_to_the_same_end_from_every_point_that_was_told(name, size):
    data = (SAMPLES / name).read_bytes()
    start, told = follow(data, size)
    assert start.progress.ready_line is not None
    assert told.progress_told
    for progress, offset in told.progress_told:
        for line in data[offset:].decode("utf-8", "replace").split("\n"):
            progress = advance(progress, line) if line else progress  # noqa: PLW2901
        assert progress == start.progress


def test_every_phase_of_one_piece_is_told():
    data = (SAMPLES / LOGS[0]).read_bytes()
    _start, by_line = follow(data, 1)
    _start, at_once = follow(data, 10_000)
    assert at_once.phases == by_line.phases
    assert len(at_once.progress_told) == 1
