"""Reads a mapping (of a form or a YAML document) into a DeploymentSpec, or says all that is wrong with it."""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address
from typing import Any

from deployments.planning.flags import normalise_flag
from deployments.planning.sizes import parse_size
from deployments.planning.spec import AUTO, DTYPES, TASKS, ArgumentValue, DeploymentSpec, Problem, Problems

MAX_ENTRIES = 200
MAX_VALUE = 8192
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SERVED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_DEVICE = re.compile(r"cpu|(?:GPU|MIG)-[A-Za-z0-9/_-]{1,90}")
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_REQUIRED = ("name", "host", "model", "served_model_name")
FIELDS = tuple(DeploymentSpec.__dataclass_fields__)


def parse_spec(source: Mapping[str, Any]) -> DeploymentSpec | Problems:
    """Read every field; a field left out or empty (null, "") takes its default.

    All problems are reported at once.
    """
    if not isinstance(source, Mapping):
        return Problems(
            items=(
                Problem(
                    path="", code="NOT_A_MAPPING", message="The spec must be a list of fields with values."
                ),
            )
        )
    reader = _Reader(source)
    values: dict[str, Any] = {
        "name": reader.pattern(
            "name", _NAME, "lower-case letters, digits and dashes, at most 63, such as qwen3-chat"
        ),
        "host": reader.pattern("host", _HOST, "the name of an enrolled host"),
        "model": reader.absolute_path("model"),
        "served_model_name": reader.pattern(
            "served_model_name", _SERVED_NAME, "letters, digits and . _ : / @ + -"
        ),
        "vllm": reader.absolute_path("vllm", default=AUTO, word=AUTO),
        "instances": reader.whole("instances", default=1, low=1, high=256),
        "tensor_parallel": reader.whole("tensor_parallel", default=1, low=1, high=64),
        "pipeline_parallel": reader.whole("pipeline_parallel", default=1, low=1, high=64),
        "devices": reader.devices("devices"),
        "max_model_len": reader.whole("max_model_len", default=None, low=1, high=100_000_000),
        "max_num_seqs": reader.whole("max_num_seqs", default=None, low=1, high=1_000_000),
        "dtype": reader.choice("dtype", DTYPES, default="auto"),
        "gpu_memory_utilization": reader.share("gpu_memory_utilization"),
        "kv_cache_memory_bytes": reader.size("kv_cache_memory_bytes"),
        "port": reader.whole("port", default=AUTO, low=1024, high=65535, word=AUTO),
        "address": reader.address("address", default="127.0.0.1"),
        "task": reader.choice("task", TASKS, default="generate"),
        "extra_args": reader.arguments("extra_args"),
        "env": reader.variables("env"),
        "secrets": reader.secrets("secrets"),
        "notes": reader.text("notes"),
    }
    reader.refuse_unknown_fields()
    if not reader.problems:
        reader.check_together(values)
    return Problems(items=tuple(reader.problems)) if reader.problems else DeploymentSpec(**values)


class _Reader:
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
            if key in _REQUIRED:
                self.problem(key, "REQUIRED", f"{key} is missing.")
            return None
        return value

    def refuse_unknown_fields(self) -> None:
        for key in self.source:
            if key in FIELDS:
                continue
            name = str(key)[:80]
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else " Arguments of vLLM go below extra_args."
            self.problem(name, "FIELD_UNKNOWN", f"There is no field {name}.{hint}")

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
        if (
            not isinstance(value, str)
            or not value.startswith("/")
            or _CONTROL.search(value)
            or len(value) > 1024
        ):
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
            self.problem(
                key, "OUT_OF_RANGE", f"{key} must be a whole number from {low:,} to {high:,}{or_word}."
            )
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
            self.problem(
                key, "NOT_AN_ADDRESS", f"{key} must be an IP address of the host, such as 127.0.0.1."
            )
            return default

    def text(self, key: str) -> str:
        value = self.value(key)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > MAX_VALUE or re.search("[\x00\ud800-\udfff]", value):
            self.problem(key, "INVALID", f"{key} must be text of at most {MAX_VALUE:,} characters.")
            return ""
        return value

    def devices(self, key: str) -> str | tuple[int | str, ...]:
        value = self.value(key)
        if value is None or value == AUTO:
            return AUTO
        # A form gives "0, 1" as one text; YAML gives a list.
        items = (
            re.split(r"[,\s]+", value)
            if isinstance(value, str)
            else value
            if isinstance(value, list | tuple)
            else [value]
        )
        found: list[int | str] = []
        for position, item in enumerate(items[:MAX_ENTRIES]):
            item = int(item) if isinstance(item, str) and re.fullmatch("[0-9]{1,4}", item) else item  # noqa: PLW2901
            index = isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 10_000
            if not index and not (isinstance(item, str) and _DEVICE.fullmatch(item)):
                self.problem(
                    f"{key}[{position}]",
                    "NOT_A_DEVICE",
                    "A device is an index such as 0, a UUID such as GPU-…, or cpu.",
                )
            else:
                found.append(item)
        if len(set(found)) != len(found):
            self.problem(key, "TWICE", f"{key} names the same device twice.")
        return tuple(found) or AUTO

    def mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or len(value) > MAX_ENTRIES:
            self.problem(key, "NOT_A_MAPPING", f"{key} must be at most {MAX_ENTRIES} names with values.")
            return {}
        return value

    def arguments(self, key: str) -> dict[str, ArgumentValue]:
        found: dict[str, ArgumentValue] = {}
        for name, value in self.mapping(key).items():
            flag = normalise_flag(str(name))
            path = f"{key}.{str(name)[:80]}"
            if flag is None:
                self.problem(
                    path,
                    "NOT_A_FLAG",
                    f"{str(name)[:80]!r} is not the name of an argument, such as --enable-prefix-caching.",
                )
                continue
            if flag in found:
                self.problem(path, "TWICE", f"{flag} is given twice.")
            argument = _argument_value(value)
            if argument is None:
                self.problem(
                    path,
                    "NOT_A_VALUE",
                    f"The value of {flag} must be true, text, a number, or a list of those.",
                )
                continue
            if argument is False:
                self.problem(
                    path, "SWITCH_OFF", f"To switch {flag} off, write --no-{flag[2:]}: true, or leave it out."
                )
                continue
            found[flag] = argument
        return dict(sorted(found.items()))

    def variables(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self.mapping(key).items():
            path = f"{key}.{str(name)[:80]}"
            text = _scalar(value)
            if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
                self.problem(
                    path, "NOT_A_VARIABLE", f"{str(name)[:80]!r} is not the name of an environment variable."
                )
            elif text is None:
                self.problem(
                    path,
                    "NOT_A_VALUE",
                    f"The value of {name} must be text; put yes, no, on, off and true in quotes.",
                )
            else:
                found[name] = text
        return dict(sorted(found.items()))

    def secrets(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self.mapping(key).items():
            path = f"{key}.{str(name)[:80]}"
            if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
                self.problem(
                    path, "NOT_A_VARIABLE", f"{str(name)[:80]!r} is not the name of an environment variable."
                )
            elif not isinstance(value, str) or _CREDENTIAL.fullmatch(value) is None:
                # The value is not repeated: somebody may have put the secret itself here.
                self.problem(
                    path,
                    "NOT_A_CREDENTIAL",
                    f"{name} must be the name of a stored credential, never the secret itself.",
                )
            else:
                found[name] = value
        return dict(sorted(found.items()))

    def check_together(self, values: Mapping[str, Any]) -> None:
        twice = sorted(set(values["env"]) & set(values["secrets"]))
        for name in twice:
            self.problem(f"secrets.{name}", "TWICE", f"{name} is both a variable and a secret.")
        devices = values["devices"]
        if isinstance(devices, tuple) and "cpu" in devices and len(devices) > 1:
            self.problem("devices", "MIXED", "cpu cannot be combined with GPUs.")
        if values["port"] != AUTO and values["port"] + values["instances"] - 1 > 65535:
            self.problem(
                "port",
                "OUT_OF_RANGE",
                f"{values['instances']} instances from port {values['port']} on go past 65535.",
            )


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    text = str(value)
    return text if len(text) <= MAX_VALUE and not _CONTROL.search(text) else None


def _argument_value(value: Any) -> ArgumentValue | None:
    """Return true, text, or a tuple of texts.

    A mapping becomes the JSON text that vLLM takes. None where it is neither.
    """
    if value is None or value == "":
        return True
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        try:
            return _scalar(
                json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            )
        except (TypeError, ValueError):
            return None
    if isinstance(value, list | tuple):
        items = [_scalar(item) for item in value[:MAX_ENTRIES]]
        texts = tuple(item for item in items if item is not None)
        # An item that begins with a dash would be read as the next argument.
        sound = len(texts) == len(value) > 0 and not any(text.startswith("-") for text in texts)
        return texts if sound else None
    return _scalar(value)
