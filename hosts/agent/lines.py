"""One JSON object a line, at most 256 KiB, both ways."""

from __future__ import annotations

import json
import threading
from typing import Any, BinaryIO, Dict, Optional

LINE_LIMIT = 256 << 10
PROTOCOL = 1


class LineTooLong(Exception):
    """The peer sent a line over the limit; it was read and dropped."""


def read_line(stream: BinaryIO) -> Optional[bytes]:
    """The next line without its end, None at the end of the stream.

    Raises LineTooLong after dropping the line.
    """
    line = stream.readline(LINE_LIMIT + 1)
    if not line:
        return None
    if line.endswith(b"\n") or len(line) <= LINE_LIMIT:
        return line.rstrip(b"\r\n")
    while line and not line.endswith(b"\n"):
        line = stream.readline(LINE_LIMIT)
    raise LineTooLong


def encode_line(value: Dict[str, Any]) -> bytes:
    """Lone surrogates (file names that are no UTF-8) become '?'.

    The peer gets valid UTF-8 whatever the host holds.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class LineWriter:
    """Writes whole lines from several threads. After the peer is gone it only remembers that."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.broken = threading.Event()

    def write(self, line: bytes) -> None:
        with self._lock:
            if self.broken.is_set():
                return
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):  # EPIPE; a closed file object
                self.broken.set()
