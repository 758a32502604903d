"""Reads the argv of `vllm serve` the way vLLM's parser does, and refuses what it would refuse.

A refusal is exit 2 with argparse's words (vLLM 0.32.0 CPU build, recorded).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.vllm.versions import is_at_least, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-asc": "--api-server-count",
    "-ep": "--enable-expert-parallel",
}
INTEGERS = frozenset(
    {
        "--port",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--seed",
        "--shutdown-timeout",
    }
)
HUMAN = frozenset({"--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--kv-cache-memory-bytes"})
DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
MANY = frozenset({"--served-model-name", "--api-key"})
SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class ArgumentError(Exception):
    """Exit 2: `args[0]` is the whole text that goes to the log."""


@dataclass
class ServeArguments:
    """What the stand-in acts upon, plus every given option for the `non-default args` line."""

    model: str = "Qwen/Qwen3-0.6B"
    host: str | None = None
    port: int = 8000
    served: list[str] = field(default_factory=list)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    utilization: float = 0.9
    kv_cache_memory: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    kv_cache_dtype: str = "auto"
    load_format: str = "auto"
    enforce_eager: bool = False
    api_keys: list[str] = field(default_factory=list)
    shutdown_timeout: int = 0
    load_tracking: bool = False
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def served_names(self) -> list[str]:
        return self.served or [self.model]

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def compiled_for(self) -> str:
        """Name what a compilation is kept for: the model and how it is split."""
        return f"{self.model} {self.tensor_parallel}"


@cache
def known_options() -> dict[str, tuple[str, str | None, str]]:
    text = (Path(__file__).parent / "options.json").read_text("utf-8")
    return {name: (row[0], row[1], row[2]) for name, row in json.loads(text)["options"].items()}


def knows(option: str, version: str) -> bool:
    row = known_options().get(option)
    if row is None:
        return False
    since, until, _ = row
    have = parse_version(version)
    return parse_version(since) <= have and (until is None or have < parse_version(until))


def find_serve(argv: Sequence[str]) -> int | None:
    """Index behind `serve` of a vLLM command line, None where it is none."""
    for index, word in enumerate(argv):
        if word == "serve" and index > 0 and (Path(argv[index - 1]).name == "vllm" or "vllm" in argv[index - 1]):
            return index + 1
    return None


def parse_human_int(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if match is None:
        kind = "human_readable_int_or_auto" if option == "--max-model-len" else "human_readable_int"
        raise ArgumentError(_complain(f"argument {option}: invalid {kind} value: {text!r}"))
    return int(float(match[1]) * SCALE.get(match[2], 1))


def _complain(text: str) -> str:
    return f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {text}\n"


def _unrecognized(words: Sequence[str]) -> str:
    return (
        "usage: vllm [-h] [-v]\n"
        "            "
        "{chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}\n"
        "            ...\n"
        f"vllm: error: unrecognized arguments: {' '.join(words)}\n"
    )


def parse_serve(words: Sequence[str], *, version: str) -> ServeArguments:
    """Arguments behind `serve`. ArgumentError carries the text of the refusal."""
    given, positional, unknown = _split(words, version=version)
    if unknown:
        raise ArgumentError(_unrecognized(unknown))
    arguments = ServeArguments(utilization=0.92 if is_at_least(version, "0.20") else 0.9)
    values = {name: _convert(name, value) for name, value in given.items()}
    if positional:
        arguments.model = positional[0]
        arguments.given["model_tag"] = positional[0]
    for name, value in values.items():
        arguments.given[name[2:].replace("-", "_")] = value
    _fill(arguments, values, positional=bool(positional))
    arguments.given.setdefault("model", arguments.model)
    return arguments


def _fill(arguments: ServeArguments, values: dict[str, Any], *, positional: bool) -> None:
    if "--model" in values and not positional:
        arguments.model = values["--model"]
    targets = {
        "--host": "host",
        "--port": "port",
        "--served-model-name": "served",
        "--tensor-parallel-size": "tensor_parallel",
        "--pipeline-parallel-size": "pipeline_parallel",
        "--gpu-memory-utilization": "utilization",
        "--kv-cache-memory-bytes": "kv_cache_memory",
        "--max-model-len": "max_model_len",
        "--max-num-seqs": "max_num_seqs",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--load-format": "load_format",
        "--enforce-eager": "enforce_eager",
        "--api-key": "api_keys",
        "--shutdown-timeout": "shutdown_timeout",
        "--enable-server-load-tracking": "load_tracking",
    }
    for option, attribute in targets.items():
        if option in values:
            setattr(arguments, attribute, values[option])


def _split(words: Sequence[str], *, version: str) -> tuple[dict[str, Any], list[str], list[str]]:
    given: dict[str, Any] = {}
    positional: list[str] = []
    unknown: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or word == "-":
            (unknown if positional else positional).append(word)
            continue
        name, _, inline = word.partition("=")
        option, kind = _canonical(name, version)
        if option is None:
            unknown.append(word)
            continue
        if kind in ("flag", "no"):
            given[option] = kind == "flag"
            continue
        values = [inline] if "=" in word else []
        while not values or (option in MANY and "=" not in word):
            if index >= len(words) or (words[index].startswith("--") and len(words[index]) > 2):
                break
            values.append(words[index])
            index += 1
        if not values:
            raise ArgumentError(_complain(f"argument {option}: expected one argument"))
        given[option] = values if option in MANY else values[0]
    return given, positional, unknown


def _canonical(name: str, version: str) -> tuple[str | None, str]:
    option = SHORT.get(name, "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name)
    base = option.split(".")[0]
    if knows(base, version):
        return option, known_options()[base][2]
    if (
        option.startswith("--no-")
        and knows("--" + option[5:], version)
        and known_options()["--" + option[5:]][2] == "flag"
    ):
        return "--" + option[5:], "no"
    return None, ""


def _convert(option: str, value: Any) -> Any:
    if option in INTEGERS:
        try:
            return int(value)
        except ValueError:
            raise ArgumentError(_complain(f"argument {option}: invalid int value: {value!r}")) from None
    if option in HUMAN:
        if option == "--max-model-len" and value in ("-1", "auto"):
            return None
        return parse_human_int(option, value)
    if option == "--gpu-memory-utilization":
        try:
            return float(value)
        except ValueError:
            raise ArgumentError(_complain(f"argument {option}: invalid float value: {value!r}")) from None
    if option == "--dtype" and value not in DTYPES:
        choices = ", ".join(repr(each) for each in DTYPES)
        raise ArgumentError(_complain(f"argument --dtype: invalid choice: {value!r} (choose from {choices})"))
    return value
