"""Lines of the agent: cut from bytes, bounded, and read without trusting them. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hosts.agent_install import AgentRefused, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_MAX = 256 * 1024

# Escapes that JSON allows and neither a database nor UTF-8 takes: NUL and halves of surrogate pairs.
_UNCLEAN = re.compile(r"\\u(0000|[dD][89abAB][0-9a-fA-F]{2}|[dD][c-fC-F][0-9a-fA-F]{2})")
_BAD = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Answer:
    """One line: to which request, `kind`, and its body."""

    id: str
    kind: str
    body: dict[str, Any]
    size: int

    @property
    def is_last(self) -> bool:
        return self.kind in {"result", "refusal"}


class LineBuffer:
    """Bytes in, whole lines out.

    A line without an end beyond 256 KiB is refused: AgentRefused (AGENT_GARBLED).
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0  # no line end before this

    def add(self, piece: bytes) -> None:
        self._rest += piece

    def take_lines(self) -> Iterator[bytes]:
        """Give the whole lines there are. Those not taken stay."""
        while True:
            end = self._rest.find(b"\n", self._looked)
            if (end if end >= 0 else len(self._rest)) > LINE_MAX:
                raise AgentRefused.of(_garbled())
            if end < 0:
                self._looked = len(self._rest)
                return
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._looked = 0
            yield line


def read_answer(line: bytes) -> Answer | None:
    """Read one line, None where it is none of the protocol's. NUL and lone surrogates become U+FFFD."""
    text = line.decode("utf-8", errors="replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    if _UNCLEAN.search(text):
        fields = _clean(fields)
    request_id, kind, body = fields.get("id"), fields.get("kind"), fields.get("body")
    if not isinstance(request_id, str) or not isinstance(kind, str):
        return None
    return Answer(id=request_id, kind=kind, body=body if isinstance(body, dict) else {}, size=len(line))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _BAD.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    return value


def _garbled() -> Refusal:
    return Refusal(
        "AGENT_GARBLED",
        f"The agent sent a line of more than {LINE_MAX} bytes.",
        "Start it anew; if it happens again, something else writes to its output.",
        {"limit": LINE_MAX},
    )
