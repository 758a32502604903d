r"""Takes one line of a vLLM log apart.

Three layouts are read: vLLM before 0.10.2 (no process prefix), 0.10.2 to 0.31 (a prefix on every line, which
may nest, also before uvicorn lines and tracebacks), and 0.32 on (the prefix is part of the log format;
uvicorn, tqdm and tracebacks come bare). Colour codes are stripped; of a line that was overwritten with
carriage returns (progress bars) the last part counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
MAX_LINE = 64 * 1024

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX = re.compile(r"\((?P<process>[A-Za-z][\w ]{0,40}?)(?: rank=\d{1,6})?(?:=\d{1,6})? pid=(?P<pid>\d{1,10})\) ?")
_HEADER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[?(?P<source>[\w./\-]{1,120}:\d{1,6})\] ?(?P<message>.*)",
    re.DOTALL,
)
# uvicorn: "INFO:     Application startup complete."
_UVICORN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s{1,9}(?P<message>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """`time` is the text of the line (host's local time, no year).

    Whatever the line does not carry is None.
    """

    process: str | None
    pid: int | None
    level: Level | None
    time: str | None
    source: str | None
    message: str
    progress: bool = False

    @property
    def is_bare(self) -> bool:
        """True for text without a log header: uvicorn's, a progress bar, a traceback printed as it is."""
        return self.source is None


def strip_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def parse_line(text: str) -> LogLine:
    """Read one line; what is in no known layout becomes a LogLine whose message is the whole line."""
    plain = strip_ansi(text[:MAX_LINE]).rstrip("\r\n")
    parts = [part for part in plain.split("\r") if part.strip()]
    progress = len(parts) > 1 or plain.startswith("\r")
    process, pid, rest = _take_prefix(parts[0] if parts else "")
    if len(parts) > 1:
        # The prefix stands before the first part only; the last part is what a terminal would show.
        last_process, last_pid, rest = _take_prefix(parts[-1])
        process, pid = last_process or process, last_pid or pid
    header = _HEADER.match(rest)
    if header is not None:
        return LogLine(
            process=process, pid=pid, level=_level(header["level"]), time=header["time"],
            source=header["source"], message=header["message"].rstrip(), progress=progress,
        )  # fmt: skip
    bare = _UVICORN.match(rest)
    level = _level(bare["level"]) if bare else None
    message = bare["message"] if bare else rest
    return LogLine(
        process=process,
        pid=pid,
        level=level,
        time=None,
        source=None,
        message=message.rstrip(),
        progress=progress,
    )


def parse_lines(texts: Iterable[str]) -> Iterator[LogLine]:
    return (parse_line(text) for text in texts)


def _take_prefix(text: str) -> tuple[str | None, int | None, str]:
    """Take off every "(Process pid=N) "; the innermost one, the last, is the process that wrote the line."""
    process: str | None = None
    pid: int | None = None
    while (match := _PREFIX.match(text)) is not None:
        process, pid, text = match["process"], int(match["pid"]), text[match.end() :]
    return process, pid, text


def _level(text: str) -> Level | None:
    levels: dict[str, Level] = {
        "DEBUG": "DEBUG", "INFO": "INFO", "WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "CRITICAL",
    }  # fmt: skip
    return levels.get(text)
