"""Reading a request's arguments: the right type or a BAD_REQUEST that names the field."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

from .refusal import bad_request

# Names become file names and parts of paths: no separators, no leading dot, no option-like dash.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MISSING = object()


def read_name(args: Mapping[str, Any], field: str) -> str:
    """A name that is safe as a file name."""
    value = args.get(field)
    if not isinstance(value, str) or not _NAME.match(value):
        raise bad_request(f"'{field}' must be 1 to 128 letters, digits, dots, dashes or underscores.", field=field)
    return value


def read_text(args: Mapping[str, Any], field: str, default: Any = _MISSING) -> Any:
    """A string without NUL; the default (which may be None) where the field is absent or null."""
    value = args.get(field)
    if value is None and default is not _MISSING:
        return default
    if not isinstance(value, str) or "\0" in value:
        raise bad_request(f"'{field}' must be a string.", field=field)
    return value


def read_number(
    args: Mapping[str, Any],
    field: str,
    *,
    default: Any = _MISSING,
    low: float = 0,
    high: float = 2**63,
) -> Any:
    """An int or float between low and high (both included)."""
    value = args.get(field)
    if value is None and default is not _MISSING:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise bad_request(f"'{field}' must be a number from {low:g} to {high:g}.", field=field)
    return value


def read_integer(
    args: Mapping[str, Any], field: str, *, default: Any = _MISSING, low: int = 0, high: int = 2**63
) -> Any:
    value = read_number(args, field, default=default, low=low, high=high)
    if value is not None and not isinstance(value, int):
        raise bad_request(f"'{field}' must be a whole number.", field=field)
    return value


def read_flag(args: Mapping[str, Any], field: str, *, default: bool) -> bool:
    value = args.get(field, default)
    if not isinstance(value, bool):
        raise bad_request(f"'{field}' must be true or false.", field=field)
    return value


def read_texts(args: Mapping[str, Any], field: str, *, optional: bool = True) -> List[str]:
    """A list of strings without NUL."""
    value = args.get(field)
    if value is None and optional:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise bad_request(f"'{field}' must be a list of strings.", field=field)
    return list(value)


def read_environment(args: Mapping[str, Any], field: str) -> Dict[str, str]:
    """Variables by name. The refusal never repeats a value: it may be a secret."""
    value = args.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{field}' must be an object of strings.", field=field)
    for name, text in value.items():
        if not _ENV_NAME.match(name) or not isinstance(text, str) or "\0" in text:
            raise bad_request(f"'{field}' has a variable that is no name with a string.", field=field)
    return dict(value)


def read_object(args: Mapping[str, Any], field: str) -> Optional[Dict[str, Any]]:
    value = args.get(field)
    if value is not None and not isinstance(value, dict):
        raise bad_request(f"'{field}' must be an object.", field=field)
    return value
