"""Strict readers of environment variables: a value that cannot be understood stops the start with a sentence."""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

TRUTHS = {"true": True, "false": False}


def text(name: str, default: str | None = None) -> str:
    """The variable NAME, or the content of the file that NAME_FILE names; without both, the default.

    Raises ImproperlyConfigured when neither is set and there is no default, or when the file cannot be read.
    """
    file_name = os.environ.get(f"{name}_FILE")
    if file_name:
        try:
            return Path(file_name).read_text(encoding="utf-8").strip()
        except OSError as error:
            message = f"{name}_FILE names {file_name}, which cannot be read: {error.strerror}."
            raise ImproperlyConfigured(message) from error
    value = os.environ.get(name, default)
    if value is None or (default is None and not value):
        message = f"{name} is not set. Set it, or {name}_FILE to a file that holds it (docs/install.md)."
        raise ImproperlyConfigured(message)
    return value


def boolean(name: str, *, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value not in TRUTHS:
        raise ImproperlyConfigured(f"{name} is {value!r}; it must be true or false.")
    return TRUTHS[value]


def integer(name: str, default: int) -> int:
    value = os.environ.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is {value!r}; it must be a whole number.") from error


def words(name: str, default: str | None = None) -> list[str]:
    """A comma-separated list without empty parts."""
    return [part.strip() for part in text(name, default).split(",") if part.strip()]
