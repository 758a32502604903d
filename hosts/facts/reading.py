"""Reads single values out of JSON that a host sent.

Wrong types become None, long text is cut, invalid text replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from audit.canonical import clean_text

MAX_TEXT = 4096
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII)
# 8 EiB: larger counts do not fit a signed 64-bit column and are nonsense for any host.
MAX_COUNT = 2**63 - 1


def read_text(source: Mapping[str, Any], key: str, *, limit: int = MAX_TEXT) -> str | None:
    value = source.get(key)
    if not isinstance(value, str):
        return None
    return clean_text(value[:limit]).strip() or None


def read_count(source: Mapping[str, Any], key: str) -> int | None:
    value = source.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value)


def read_integer(source: Mapping[str, Any], key: str) -> int | None:
    value = source.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_COUNT else None


def read_number(source: Mapping[str, Any], key: str) -> float | None:
    value = source.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return float(value)


def read_flag(source: Mapping[str, Any], key: str) -> bool | None:
    value = source.get(key)
    return value if isinstance(value, bool) else None


def read_mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def read_mappings(source: Mapping[str, Any], key: str, *, limit: int) -> list[Mapping[str, Any]]:
    value = source.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [item for item in value[:limit] if isinstance(item, Mapping)]


def read_moment(source: Mapping[str, Any], key: str) -> datetime | None:
    """Read an ISO-8601 time; one without a zone is UTC, as the protocol says."""
    text = read_text(source, key, limit=64)
    if text is None or _ISO.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
