"""Which arguments `vllm serve` has in which version, from a table sampled over vLLM's releases.

The table (data/vllm_flags.json) knows fourteen releases from 0.6.6.post1 to 0.33.0. Between two samples that
disagree the answer is not known, and newer releases than the last sample are taken to be like it; callers get
`Presence.UNSURE` there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files

from hosts.facts.versions import VllmVersion, parse_version

_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]{0,120}")
_NEGATED = "--no-"

# Short names of vllm serve, all versions. "-O" and "-cc" are the compilation settings.
ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-asc": "--api-server-count",
    "-ep": "--enable-expert-parallel",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
    "--kv-cache-memory": "--kv-cache-memory-bytes",
}

# What to use instead of an argument that is gone. Sources: vLLM's release notes and its argument parser at
# both versions.
REPLACEMENTS = {
    "--disable-log-requests": "leave it out: requests are not logged unless --enable-log-requests is given",
    "--worker-use-ray": "--distributed-executor-backend ray",
    "--engine-use-ray": "--distributed-executor-backend ray",
    "--swap-space": "leave it out: this engine does not swap the KV cache to main memory",
    "--disable-frontend-multiprocessing": "leave it out: the engine always has a process of its own",
    "--num-scheduler-steps": "leave it out, or --async-scheduling",
    "--multi-step-stream-outputs": "leave it out",
    "--use-v2-block-manager": "leave it out: there is only one block manager",
    "--task": "the deployment's task field (--runner and --convert)",
    "--guided-decoding-backend": "--structured-outputs-config",
    "--device": "leave it out: the build decides the device",
    "--speculative-model": "--speculative-config",
    "--num-speculative-tokens": "--speculative-config",
    "--rope-scaling": "--hf-overrides",
    "--rope-theta": "--hf-overrides",
    "--max-seq-len-to-capture": "--compilation-config",
    "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    "--override-pooler-config": "--pooler-config",
    "--lora-extra-vocab-size": "leave it out",
    "--disable-mm-preprocessor-cache": "--mm-processor-cache-gb 0",
    "--collect-detailed-traces": "--otlp-traces-endpoint",
}


class Presence(StrEnum):
    PRESENT = "present"
    ABSENT = "absent"
    UNSURE = "unsure"
    UNKNOWN_FLAG = "unknown_flag"


@dataclass(frozen=True, kw_only=True)
class FlagHistory:
    """Sampled releases that have a flag, oldest first.

    `first` and `last` of the whole table frame the sampling.
    """

    flag: str
    present_in: tuple[str, ...]


@dataclass(frozen=True)
class _Table:
    samples: tuple[tuple[str, VllmVersion], ...]
    flags: dict[str, tuple[bool, ...]]


def normalise_flag(text: str) -> str | None:
    """Return the long name with dashes.

    "max_num_seqs" is "--max-num-seqs", "-tp" is "--tensor-parallel-size". The part after a dot
    ("--compilation-config.cudagraph_mode") keeps its spelling. None where it is no flag name at all.
    """
    text = text.strip()
    if text in ALIASES:
        return ALIASES[text]
    text = text if text.startswith("-") else f"--{text}"
    if _FLAG.fullmatch(text) is None:
        return None
    head, dot, tail = text.partition(".")
    head = head.replace("_", "-")
    head = ALIASES.get(head, head)
    return f"{head}{dot}{tail}"


def base_flag(flag: str) -> str:
    """Return the flag that decides: "--no-x" is about "--x", "--a.b" about "--a"."""
    head = flag.partition(".")[0]
    if head.startswith(_NEGATED) and head not in _table().flags:
        return f"--{head[len(_NEGATED) :]}"
    return head


def check_flag(*, flag: str, version: VllmVersion) -> Presence:
    """Say whether `vllm serve` of that version knows the flag."""
    history = _table().flags.get(base_flag(flag))
    if history is None:
        return Presence.UNKNOWN_FLAG
    samples = _table().samples
    before = [index for index, (_, sample) in enumerate(samples) if sample <= version]
    if not before:
        return Presence.UNSURE
    here = before[-1]
    exact = samples[here][1] == version
    after = history[here + 1] if here + 1 < len(samples) else None
    # Newer than every sample, or between two samples that disagree: nobody looked.
    if not exact and (after is None or after != history[here]):
        return Presence.PRESENT if after is None and history[here] else Presence.UNSURE
    return Presence.PRESENT if history[here] else Presence.ABSENT


def flag_history(flag: str) -> FlagHistory:
    """Return where a flag exists, for the sentence that refuses it elsewhere."""
    history = _table().flags.get(base_flag(flag), ())
    names = tuple(name for (name, _), there in zip(_table().samples, history, strict=False) if there)
    return FlagHistory(flag=base_flag(flag), present_in=names)


def known_flags() -> frozenset[str]:
    return frozenset(_table().flags)


@lru_cache(maxsize=1)
def _table() -> _Table:
    document = json.loads(files("deployments.planning").joinpath("data", "vllm_flags.json").read_text("utf-8"))
    samples = tuple((name, _sample(name)) for name in document["samples"])
    flags = {flag: tuple(mark == "1" for mark in marks) for flag, marks in document["flags"].items()}
    return _Table(samples=samples, flags=flags)


def _sample(name: str) -> VllmVersion:
    version = parse_version(name)
    if version is None:
        raise ValueError(f"data/vllm_flags.json samples {name!r}, which is no version")
    return version
