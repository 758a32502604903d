"""Log lines of the stand-in: templates recorded from real starts, filled in, written to the launch's file."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORD = re.compile(r"^\((?P<process>\w+)\) (?P<level>INFO|WARNING|ERROR) (?P<rest>\[.*)$", re.DOTALL)
PREFIXED = re.compile(r"^\((?P<process>\w+)\) (?P<rest>.*)$", re.DOTALL)
BAR_STEPS = 8


@cache
def read_template(name: str) -> dict[str, list[str]]:
    """Sections of templates/NAME.log: lines behind each `== section`."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (Path(__file__).parent / "templates" / f"{name}.log").read_text("utf-8").splitlines():
        if line.startswith("== "):
            current = sections.setdefault(line[3:], [])
        elif not line.startswith("# "):
            current.append(line)
    return sections


def stamp(line: str, *, pids: Mapping[str, tuple[str, int]], at: datetime) -> str:
    """Put the process's prefix and vLLM's year-less local time where the template has `(Process) LEVEL [`."""
    match = RECORD.match(line)
    if match is not None:
        name, pid = pids[match["process"]]
        return f"({name} pid={pid}) {match['level']} {at:%m-%d %H:%M:%S} {match['rest']}"
    match = PREFIXED.match(line)
    if match is not None and match["process"] in pids:
        name, pid = pids[match["process"]]
        return f"({name} pid={pid}) {match['rest']}"
    return line


def draw_bar(line: str) -> Iterator[str]:
    """Draw a bar for `~[(Process) ]Label:|COUNT|SUFFIX`: the first opens the line, others begin with CR."""
    label, count_text, suffix = line[1:].split("|")
    count = max(1, int(count_text))
    bare = PREFIXED.match(label)
    repeated = bare["rest"] if bare else label
    for step in range(BAR_STEPS + 1) if count > BAR_STEPS else range(count + 1):
        done = step * count // BAR_STEPS if count > BAR_STEPS else step
        share = done * 100 // count
        if suffix == "%":
            filled = "█" * (share // 10)
            state = f"{share:3d}%|{filled:<10}| {done}/{count}"
        else:
            state = f"{share:3d}{suffix} | {done}/{count}"
        speed = "[00:00<?, ?it/s]" if done == 0 else f"[00:{done:02d}<00:{count - done:02d},  1.00it/s]"
        yield f"{label if step == 0 else chr(13) + repeated} {state} {speed}"


class LogWriter:
    """Appends to one launch's log file. Written at once, like a line of a process that flushes."""

    def __init__(self, path: Path, *, template: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._template = read_template(template)
        self.pids: dict[str, tuple[str, int]] = {}
        self.values: dict[str, str] = {}
        self.silent = False

    def lines(self, section: str) -> list[str]:
        return self._template.get(section, [])

    def pieces(self, section: str, **extra: str) -> list[str]:
        """Give what to write for a section, one piece after another; bars in several."""
        values = {**self.values, **extra}
        result: list[str] = []
        for raw in self.lines(section):
            line = Template(raw).safe_substitute(values)
            if line.startswith("~"):
                result.extend(draw_bar(line))
                result[-1] += "\n"
            else:
                result.append(line + "\n")
        return result

    def write(self, piece: str) -> None:
        if self.silent or self._file.closed:
            return
        self._file.write(stamp(piece, pids=self.pids, at=datetime.now().astimezone()).encode("utf-8"))

    def write_section(self, section: str, **extra: str) -> None:
        for piece in self.pieces(section, **extra):
            self.write(piece)

    def close(self) -> None:
        self._file.close()
