"""Log lines at rest. Whoever reads a log may add to it: a piece counts only from the byte where the stored part ends.

So worker and watcher can both feed the same stream, reconnect, and read overlapping pieces: nothing is lost and
nothing is there twice.
"""

import zlib
from collections.abc import Iterator
from datetime import datetime

from django.conf import settings
from django.db import transaction

from deployments.models import LogChunk, LogStream
from hosts.live import announce


class Misfit(Exception):
    """The piece does not continue what is stored; read again from `wanted` (bytes of the file)."""

    def __init__(self, wanted: int) -> None:
        super().__init__(str(wanted))
        self.wanted = wanted


def new_part(text: str, *, offset: int, next_offset: int, stored: int) -> str:
    """The part of a piece (bytes offset…next_offset of the file) that lies behind the stored end; "" when none does.

    Raises Misfit for a gap, and for an overlap where bytes of the file were replaced in the text, so that the place of
    the stored end in it is not certain.
    """
    if next_offset <= stored:
        return ""
    if offset == stored:
        return text
    content = text.encode()
    if offset > stored or len(content) != next_offset - offset:
        raise Misfit(stored)
    return content[stored - offset :].decode(errors="replace")


def append_log(*, launch_id, offset: int, text: str, next_offset: int, now: datetime) -> int:
    """Add the piece of the file that spans bytes offset…next_offset; returns the number of lines added.

    What of it is stored already adds nothing. A piece that leaves a gap, or whose stored part cannot be told from the
    rest, is refused (Misfit): the reader comes back with the bytes from the stream's `next_offset` on. Pieces are whole
    lines, but for the last of a launch.
    """
    with transaction.atomic():
        stream = LogStream.objects.select_for_update().get(launch_id=launch_id)
        text = new_part(text, offset=offset, next_offset=next_offset, stored=stream.next_offset)
        if not text:
            return 0
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        added = 0 if stream.capped else len(lines)
        capped = stream.stored_bytes + len(text) > settings.LOG_BYTES_PER_LAUNCH
        if added:
            LogChunk.objects.create(
                stream=stream,
                first_line=stream.lines + 1,
                line_count=added,
                text=zlib.compress("\n".join(lines).encode()),
                read_at=now,
            )
        LogStream.objects.filter(pk=stream.pk).update(
            next_offset=next_offset,
            lines=stream.lines + added,
            stored_bytes=stream.stored_bytes + (len(text) if added else 0),
            capped=stream.capped or capped,
        )
        announce(f"log.{launch_id}")
    return added


def read_lines(stream: LogStream, *, first: int, limit: int) -> Iterator[tuple[int, str]]:
    """(number, line) from line `first` (1-based), at most `limit` of them."""
    last = first + limit - 1
    chunks = stream.chunks.filter(first_line__lte=last).order_by("first_line")
    start = (
        stream.chunks.filter(first_line__lte=first).order_by("-first_line").values_list("first_line", flat=True).first()
    )
    if start is not None:
        chunks = chunks.filter(first_line__gte=start)
    for chunk in chunks:
        for number, line in enumerate(zlib.decompress(bytes(chunk.text)).decode().split("\n"), start=chunk.first_line):
            if first <= number <= last:
                yield number, line
