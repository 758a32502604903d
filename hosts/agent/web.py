"""One HTTP request to an instance on this host: no proxy, no redirect, bounded in time and size."""

from __future__ import annotations

import http.client
import time
import urllib.parse
from typing import Dict, Optional

from .system import HttpAnswer

BODY_LIMIT = 4 << 20


def ask(method: str, url: str, *, body: Optional[bytes], headers: Dict[str, str], timeout: float) -> HttpAnswer:
    """The answer, or why there is none. `timeout` is for the whole request, not for one read."""
    started = time.monotonic()
    parts = urllib.parse.urlsplit(url)
    target = parts.path + ("?" + parts.query if parts.query else "")
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request(method, target or "/", body=body, headers=headers)
        answer = connection.getresponse()
        content = _read(answer, connection, started + timeout)
        found = {name.lower(): value for name, value in answer.getheaders()}
        return HttpAnswer(answer.status, content, found, None, time.monotonic() - started)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) or "timed out" in str(error) else str(error)
        return HttpAnswer(None, b"", {}, reason or type(error).__name__, time.monotonic() - started)
    finally:
        connection.close()


def _read(answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float) -> bytes:
    parts = []
    size = 0
    while size < BODY_LIMIT:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if connection.sock is not None:  # None once the last byte is there (Connection: close)
            connection.sock.settimeout(left)
        part = answer.read1(min(1 << 16, BODY_LIMIT - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
