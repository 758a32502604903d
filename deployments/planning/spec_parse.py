"""Reads a mapping (of a form or a YAML document) into a DeploymentSpec, or says all that is wrong with it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from deployments.planning.flags import normalise_flag
from deployments.planning.spec import AUTO, DTYPES, TASKS, ArgumentValue, DeploymentSpec, Problem, Problems
from deployments.planning.spec_reader import CONTROL, MAX_ENTRIES, MAX_VALUE, FieldReader

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SERVED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_DEVICE = re.compile(r"cpu|(?:GPU|MIG)-[A-Za-z0-9/_-]{1,90}")
FIELDS = tuple(DeploymentSpec.__dataclass_fields__)


def parse_spec(source: Mapping[str, Any]) -> DeploymentSpec | Problems:
    """Read every field; a field left out or empty (null, "") takes its default.

    All problems are reported at once.
    """
    if not isinstance(source, Mapping):
        return Problems(
            items=(Problem(path="", code="NOT_A_MAPPING", message="The spec must be a list of fields with values."),)
        )
    reader = FieldReader(source)
    values: dict[str, Any] = {
        "name": reader.pattern("name", _NAME, "lower-case letters, digits and dashes, at most 63, such as qwen3-chat"),
        "host": reader.pattern("host", _HOST, "the name of an enrolled host"),
        "model": reader.absolute_path("model"),
        "served_model_name": reader.pattern("served_model_name", _SERVED_NAME, "letters, digits and . _ : / @ + -"),
        "vllm": reader.absolute_path("vllm", default=AUTO, word=AUTO),
        "instances": reader.whole("instances", default=1, low=1, high=256),
        "tensor_parallel": reader.whole("tensor_parallel", default=1, low=1, high=64),
        "pipeline_parallel": reader.whole("pipeline_parallel", default=1, low=1, high=64),
        "devices": _read_devices(reader, "devices"),
        "max_model_len": reader.whole("max_model_len", default=None, low=1, high=100_000_000),
        "max_num_seqs": reader.whole("max_num_seqs", default=None, low=1, high=1_000_000),
        "dtype": reader.choice("dtype", DTYPES, default="auto"),
        "gpu_memory_utilization": reader.share("gpu_memory_utilization"),
        "kv_cache_memory_bytes": reader.size("kv_cache_memory_bytes"),
        "port": reader.whole("port", default=AUTO, low=1024, high=65535, word=AUTO),
        "address": reader.address("address", default="127.0.0.1"),
        "task": reader.choice("task", TASKS, default="generate"),
        "extra_args": _read_arguments(reader, "extra_args"),
        "env": _read_variables(reader, "env"),
        "secrets": _read_secrets(reader, "secrets"),
        "notes": reader.text("notes"),
    }
    _refuse_unknown_fields(reader)
    if not reader.problems:
        _check_together(reader, values)
    return Problems(items=tuple(reader.problems)) if reader.problems else DeploymentSpec(**values)


def _read_devices(reader: FieldReader, key: str) -> str | tuple[int | str, ...]:
    value = reader.value(key)
    if value is None or value == AUTO:
        return AUTO
    # A form gives "0, 1" as one text; YAML gives a list.
    items = (
        re.split(r"[,\s]+", value) if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    )
    found: list[int | str] = []
    for position, item in enumerate(items[:MAX_ENTRIES]):
        item = int(item) if isinstance(item, str) and re.fullmatch("[0-9]{1,4}", item) else item  # noqa: PLW2901
        index = isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 10_000
        if not index and not (isinstance(item, str) and _DEVICE.fullmatch(item)):
            reader.problem(
                f"{key}[{position}]",
                "NOT_A_DEVICE",
                "A device is an index such as 0, a UUID such as GPU-…, or cpu.",
            )
        else:
            found.append(item)
    if len(set(found)) != len(found):
        reader.problem(key, "TWICE", f"{key} names the same device twice.")
    return tuple(found) or AUTO


def _read_arguments(reader: FieldReader, key: str) -> dict[str, ArgumentValue]:
    found: dict[str, ArgumentValue] = {}
    for name, value in reader.mapping(key).items():
        flag = normalise_flag(str(name))
        path = f"{key}.{str(name)[:80]}"
        if flag is None:
            reader.problem(
                path,
                "NOT_A_FLAG",
                f"{str(name)[:80]!r} is not the name of an argument, such as --enable-prefix-caching.",
            )
            continue
        if flag in found:
            reader.problem(path, "TWICE", f"{flag} is given twice.")
        argument = _argument_value(value)
        if argument is None:
            reader.problem(
                path,
                "NOT_A_VALUE",
                f"The value of {flag} must be true, text, a number, or a list of those.",
            )
            continue
        if argument is False:
            reader.problem(path, "SWITCH_OFF", f"To switch {flag} off, write --no-{flag[2:]}: true, or leave it out.")
            continue
        found[flag] = argument
    return dict(sorted(found.items()))


def _read_variables(reader: FieldReader, key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in reader.mapping(key).items():
        path = f"{key}.{str(name)[:80]}"
        text = _scalar(value)
        if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
            reader.problem(path, "NOT_A_VARIABLE", f"{str(name)[:80]!r} is not the name of an environment variable.")
        elif text is None:
            reader.problem(
                path,
                "NOT_A_VALUE",
                f"The value of {name} must be text; put yes, no, on, off and true in quotes.",
            )
        else:
            found[name] = text
    return dict(sorted(found.items()))


def _read_secrets(reader: FieldReader, key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in reader.mapping(key).items():
        path = f"{key}.{str(name)[:80]}"
        if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
            reader.problem(path, "NOT_A_VARIABLE", f"{str(name)[:80]!r} is not the name of an environment variable.")
        elif not isinstance(value, str) or _CREDENTIAL.fullmatch(value) is None:
            # The value is not repeated: somebody may have put the secret itself here.
            reader.problem(
                path,
                "NOT_A_CREDENTIAL",
                f"{name} must be the name of a stored credential, never the secret itreader.",
            )
        else:
            found[name] = value
    return dict(sorted(found.items()))


def _check_together(reader: FieldReader, values: Mapping[str, Any]) -> None:
    twice = sorted(set(values["env"]) & set(values["secrets"]))
    for name in twice:
        reader.problem(f"secrets.{name}", "TWICE", f"{name} is both a variable and a secret.")
    devices = values["devices"]
    if isinstance(devices, tuple) and "cpu" in devices and len(devices) > 1:
        reader.problem("devices", "MIXED", "cpu cannot be combined with GPUs.")
    if values["port"] != AUTO and values["port"] + values["instances"] - 1 > 65535:
        reader.problem(
            "port",
            "OUT_OF_RANGE",
            f"{values['instances']} instances from port {values['port']} on go past 65535.",
        )


def _refuse_unknown_fields(reader: FieldReader) -> None:
    for key in reader.source:
        if key in FIELDS:
            continue
        name = str(key)[:80]
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else " Arguments of vLLM go below extra_args."
        reader.problem(name, "FIELD_UNKNOWN", f"There is no field {name}.{hint}")


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    text = str(value)
    return text if len(text) <= MAX_VALUE and not CONTROL.search(text) else None


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
