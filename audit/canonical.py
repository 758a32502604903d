"""The one way a value becomes bytes that are hashed and kept for ever.

Everything that is digested (a spec revision, a plan's intent, an audit row) is written once by `canonical`
and the bytes are stored; nothing is ever serialised a second time to be compared. Two values that mean the
same give the same bytes on every database and every Python, because the form leaves no choice: UTF-8, keys
sorted, no spaces, no floats, times in UTC with microseconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

# A lone surrogate cannot be encoded as UTF-8; NUL cannot be stored in a PostgreSQL text or jsonb column.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def canonical(value: Mapping[str, object], *, form: int) -> bytes:
    """Write a mapping as canonical JSON, with the version of its form under the key "form".

    Raises TypeError for a float, bytes, a set or any type JSON does not know, and for keys that are not text;
    ValueError for a naive time, text that is not valid Unicode, or a "form" in the mapping that says
    something else.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"canonical() writes a mapping, not {type(value).__name__}")
    plain = _plain(value, path="$")
    assert isinstance(plain, dict)  # noqa: S101  # a mapping always becomes a dict; this tells the type checker
    if plain.get("form", form) != form:
        raise ValueError(f"$.form is {plain['form']!r}, but form {form} was asked for")
    plain["form"] = form
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def digest(data: bytes) -> str:
    """Return the SHA-256 of stored bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def clean_text(text: str) -> str:
    """Replace what cannot be stored (NUL, lone surrogates) by U+FFFD.

    Every text that came from a host passes here.
    """
    return _UNSTORABLE.sub(REPLACEMENT, text)


def _plain(value: object, *, path: str) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _encodable(value, path=path)
    if isinstance(value, datetime):
        return _utc(value, path=path)
    if isinstance(value, Mapping):
        return {_key(key, path=path): _plain(item, path=f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, path=f"{path}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{path} is a {type(value).__name__}, which has no canonical form")


def _key(key: object, *, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path} has the key {key!r}, which is not text")
    return _encodable(key, path=path)


def _encodable(text: str, *, path: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise ValueError(f"{path} is not valid Unicode; pass host text through clean_text() first") from problem
    return str(text)


def _utc(moment: datetime, *, path: str) -> str:
    if moment.tzinfo is None:
        raise ValueError(f"{path} is a time without a zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
