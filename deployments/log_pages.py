"""Log lines as the viewer wants them: numbered, with level and known noise marked, colours as class names."""

from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async

from deployments.log_store import read_lines
from deployments.models import LogStream
from deployments.planning.log_lines import parse_line, strip_ansi
from deployments.planning.noise import classify_noise

LONGEST_LINE = 4000
PIECE_LINES = 5000


def log_page(stream: LogStream, *, first: int, limit: int) -> dict:
    """`{"lines": [[number, text, level, noise code or ""], …], "next": number, "total": number}`."""
    lines = [[number, *render_line(text)] for number, text in read_lines(stream, first=first, limit=limit)]
    return {"lines": lines, "next": lines[-1][0] + 1 if lines else first, "total": stream.lines}


def render_line(raw: str) -> list[str]:
    """[text, level, noise]: the text without escape codes, a progress bar's last state, cut where it is over-long."""
    parsed = parse_line(raw)
    noise = classify_noise(parsed)
    text = last_state(strip_ansi(raw))
    if len(text) > LONGEST_LINE:
        text = text[:LONGEST_LINE] + " …"
    return [text, parsed.level or "", noise.code if noise else ""]


def last_state(text: str) -> str:
    """What a terminal would show of a line that a progress bar rewrote."""
    return next((part for part in reversed(text.split("\r")) if part.strip()), "")


async def whole_log(stream: LogStream) -> AsyncIterator[str]:
    """The lines that are stored now, as plain text, so many at a time."""
    for first in range(1, stream.lines + 1, PIECE_LINES):
        limit = min(PIECE_LINES, stream.lines - first + 1)
        yield await sync_to_async(plain_text)(stream, first=first, limit=limit)


def plain_text(stream: LogStream, *, first: int, limit: int) -> str:
    return "".join(f"{strip_ansi(text)}\n" for _number, text in read_lines(stream, first=first, limit=limit))
