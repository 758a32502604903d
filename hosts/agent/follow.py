"""Reading a log that still grows: whole lines, bounded events, byte offsets.

A carriage return stays in the text (tqdm draws its bars with it); NUL and invalid UTF-8 become U+FFFD.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

TEXT_LIMIT = 64 << 10
JSON_LIMIT = 192 << 10  # an event of control characters grows sixfold in JSON; a line may hold 256 KiB
PARTIAL_AFTER_S = 1.0


class LogFollower:
    """The part of a log after `offset`. Not for several threads."""

    def __init__(self, path: str, offset: int) -> None:
        self.path = path
        self.offset = offset
        self._waiting_since: Optional[float] = None

    def read(self, now: float, *, final: bool, limit: Optional[int] = None) -> Optional[Dict[str, Any]]:
        """The next event {"offset", "next", "text"}, None where nothing is ready.

        `now` is a monotonic clock in seconds. A line without its end is held back for 1 s, unless `final`.
        """
        content = self._read_raw(TEXT_LIMIT if limit is None else min(TEXT_LIMIT, limit))
        if not content:
            self._waiting_since = None
            return None
        end = content.rfind(b"\n") + 1
        if end == 0:
            end = self._end_of_partial(content, now, final=final or len(content) >= TEXT_LIMIT or limit is not None)
            if end == 0:
                return None
        self._waiting_since = None
        return self._make_event(content[:end])

    def _end_of_partial(self, content: bytes, now: float, *, final: bool) -> int:
        """How much of a line without its end may go out now."""
        if self._waiting_since is None:
            self._waiting_since = now
        if not final and now - self._waiting_since < PARTIAL_AFTER_S:
            return 0
        whole = whole_characters(content)
        # A torn character at the very end of a finished log is sent as it is.
        return whole or (len(content) if final or now - self._waiting_since > 2 * PARTIAL_AFTER_S else 0)

    def _make_event(self, content: bytes) -> Dict[str, Any]:
        while True:
            text = to_text(content)
            if len(text.encode("utf-8")) <= TEXT_LIMIT and len(json.dumps(text, ensure_ascii=False)) <= JSON_LIMIT:
                break
            half = content[: len(content) // 2]
            end = half.rfind(b"\n") + 1
            content = half[: end or whole_characters(half) or len(half)]
        event = {"offset": self.offset, "next": self.offset + len(content), "text": text}
        self.offset += len(content)
        return event

    def _read_raw(self, size: int) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, size, self.offset)
        except OSError:
            return b""
        finally:
            os.close(descriptor)


def to_text(content: bytes) -> str:
    return content.decode("utf-8", "replace").replace("\0", "\ufffd")


def whole_characters(content: bytes) -> int:
    """The length of content without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(content) - back if needed > back else len(content)
    return len(content)


def read_available(follower: LogFollower, now: float, *, final: bool, most: int) -> List[Dict[str, Any]]:
    """Up to `most` events that are ready now."""
    events: List[Dict[str, Any]] = []
    while len(events) < most:
        event = follower.read(now, final=final)
        if event is None:
            break
        events.append(event)
    return events
