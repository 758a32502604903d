"""Reads single fields of a spec and collects what is wrong with them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from deployments.planning.sizes import parse_size
from deployments.planning.spec import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ENTRIES = 200
MAX_VALUE = 8192
CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
REQUIRED = ("name", "host", "model", "served_model_name")


class FieldReader:
    """Collects problems while it reads; a field that is wrong reads as its default."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def problem(self, path: str, code: str, message: str) -> None:
        self.problems.append(Problem(path=path, code=code, message=message))

    def value(self, key: str) -> Any:
        value = self.source.get(key)
        value = value.strip() if isinstance(value, str) else value
        if value in (None, ""):
            if key in REQUIRED:
                self.problem(key, "REQUIRED", f"{key} is missing.")
            return None
        return value

    def pattern(self, key: str, pattern: re.Pattern[str], wanted: str) -> str:
        value = self.value(key)
        if value is None:
            return ""
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if pattern.fullmatch(text) is None:
            self.problem(key, "INVALID", f"{key} must be {wanted}.")
        return text

    def absolute_path(self, key: str, *, default: str = "", word: str | None = None) -> str:
        value = self.value(key)
        if value is None:
            return default
        if word is not None and value == word:
            return word
        if not isinstance(value, str) or not value.startswith("/") or CONTROL.search(value) or len(value) > 1024:
            or_word = f' or "{word}"' if word else ""
            self.problem(
                key,
                "NOT_A_PATH",
                f"{key} must be an absolute path on the host{or_word}, such as /models/qwen3.",
            )
            return default
        path = posixpath.normpath(value)
        return path if not path.startswith("//") else path[1:]

    def whole(self, key: str, *, default: Any, low: int, high: int, word: str | None = None) -> Any:
        value = self.value(key)
        if value is None or (word is not None and value == word):
            return default
        if isinstance(value, str) and re.fullmatch("[0-9]{1,12}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            or_word = f' or "{word}"' if word else ""
            self.problem(key, "OUT_OF_RANGE", f"{key} must be a whole number from {low:,} to {high:,}{or_word}.")
            return default
        return value

    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str:
        value = self.value(key)
        if value is None:
            return default
        if value not in choices:
            self.problem(key, "NOT_A_CHOICE", f"{key} must be one of {', '.join(choices)}.")
            return default
        return str(value)

    def share(self, key: str) -> Decimal | None:
        value = self.value(key)
        if value is None:
            return None
        try:
            share = Decimal(str(value)) if not isinstance(value, bool) else Decimal(0)
        except InvalidOperation:
            share = Decimal(0)
        # Four decimals are 14 MiB of a 141 GiB GPU; more would only look exact.
        if not share.is_finite() or not Decimal("0.01") <= share <= 1 or share != round(share, 4):
            self.problem(
                key,
                "OUT_OF_RANGE",
                f"{key} must be a share from 0.01 to 1 with at most four decimals, such as 0.3.",
            )
            return None
        return share.normalize() if share != 1 else Decimal(1)

    def size(self, key: str) -> int | None:
        value = self.value(key)
        if value is None:
            return None
        size = value if isinstance(value, int) and not isinstance(value, bool) else None
        if isinstance(value, str):
            size = parse_size(value)
        if size is None or not 2**20 <= size <= 2**45:
            self.problem(
                key,
                "NOT_A_SIZE",
                f"{key} must be a size of at least 1MiB, such as 64MiB, 40GiB or a number of bytes.",
            )
            return None
        return size

    def address(self, key: str, *, default: str) -> str:
        value = self.value(key)
        if value is None:
            return default
        try:
            return str(ip_address(value if isinstance(value, str) else ""))
        except ValueError:
            self.problem(key, "NOT_AN_ADDRESS", f"{key} must be an IP address of the host, such as 127.0.0.1.")
            return default

    def text(self, key: str) -> str:
        value = self.value(key)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > MAX_VALUE or re.search("[\x00\ud800-\udfff]", value):
            self.problem(key, "INVALID", f"{key} must be text of at most {MAX_VALUE:,} characters.")
            return ""
        return value

    def mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or len(value) > MAX_ENTRIES:
            self.problem(key, "NOT_A_MAPPING", f"{key} must be at most {MAX_ENTRIES} names with values.")
            return {}
        return value
