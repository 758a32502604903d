"""Known harmless lines of a vLLM log, so that a viewer can fold them and real warnings stand out.

Each entry was seen in logs of instances that served correctly (vLLM 0.25.1 on an H200, 0.32.0 CPU build) or
is documented by vLLM as a notice. A line that no entry knows is not noise; a line of level ERROR never is,
except the one named here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.planning.log_lines import LogLine


@dataclass(frozen=True)
class Noise:
    """`code` is stable; `reason` is one sentence for the reader."""

    code: str
    reason: str


@dataclass(frozen=True)
class _Entry:
    pattern: re.Pattern[str]
    noise: Noise


def _entry(code: str, pattern: str, reason: str) -> _Entry:
    return _Entry(re.compile(pattern), Noise(code, reason))


_ENTRIES = (
    _entry(
        "ULIMIT",
        r"^Found ulimit of \d+ and failed to automatically increase",
        "Only matters with thousands of open connections.",
    ),
    _entry(
        "CHAT_TEMPLATE",
        r"chat template content format|[Nn]o chat template (?:is )?(?:provided|found|defined)|chat_template",
        "vLLM says how it reads the model's chat template.",
    ),
    _entry(
        "SAMPLING_DEFAULTS",
        r"^Default (?:vLLM )?sampling parameters have been overridden|^Using default chat sampling params",
        "The model brings its own sampling defaults.",
    ),
    _entry(
        "TRITON_ON_CPU",
        r"^Triton is (?:installed, but doesn't include CPU backend|not installed)"
        r"|Triton not available, find_triton_kernels|requires Triton; using the V1 model runner",
        "Triton is not needed without a GPU.",
    ),
    _entry(
        "EAGER",
        r"^Enforce eager set, disabling|^Inductor compilation was disabled by user settings",
        "Follows from --enforce-eager, which the deployment asks for.",
    ),
    _entry(
        "CPU_PRELOAD",
        r"^lib(?:tcmalloc|iomp\w*) is not found in LD_PRELOAD",
        "A possible speed-up of the CPU build, not a fault.",
    ),
    _entry(
        "CPU_SSM_CACHE",
        r"^Reset SSM cache type to float32",
        "A default of the CPU build for models of another kind.",
    ),
    _entry(
        "NUMA_BINDING",
        r"Warning: NUMA binding: Using MEMBIND policy",
        "The CPU build says where it keeps its memory.",
    ),
    _entry(
        "TORCH_DEPRECATION",
        r"(?:Future|Deprecation|User|Pydantic\w*)Warning: .*(?:deprecated|will be removed)"
        r"|^\s+(?:if hasattr\(value|wrapper = lookup\()",
        "A notice for vLLM's developers.",
    ),
    _entry(
        "TOKENIZER_REGEX",
        r"\[transformers\] The tokenizer you are loading from .* with an incorrect regex pattern",
        "A notice of transformers about a family of tokenizers.",
    ),
    _entry(
        "C10D_HOSTNAME",
        r"\[c10d\] The hostname of the client socket cannot be retrieved",
        "The host has no name for its own address; connections inside the host work.",
    ),
    _entry(
        "AUTOTUNE_DEFAULTS",
        r"^No FlashInfer autotune cache entries found",
        "FlashInfer uses its default settings.",
    ),
    _entry(
        "ASYNC_SCHEDULING",
        r"^Async scheduling is disabled because",
        "vLLM chose another scheduler for this combination of options.",
    ),
    _entry(
        "STATS_OFF",
        r"^AsyncLLM created with api_server_count more than 1; disabling stats logging",
        "Statistics are read from /metrics instead.",
    ),
    _entry(
        "LEAKED_AT_EXIT",
        r"resource_tracker: There appear to be \d+ leaked|^\s*warnings\.warn\('resource_tracker|^nanobind: "
        r"|^ - (?:leaked |\.\.\. skipped)|^See https://nanobind\.readthedocs",
        "Python's bookkeeping when the process ends.",
    ),
    _entry("SHUTDOWN_STEPS", r"^\[shutdown\] ", "A step of the shutdown that was asked for."),
    _entry("BANNER", r"^\s*[█▄▀ ]*[█▄▀][█▄▀ ]*(?:version \S+|model .*)?\s*$", "vLLM's logo."),
    _entry("ROUTES", r"^Route: /|^Available routes are:", "The list of HTTP routes."),
    _entry(
        "PROBES",
        r'"GET /(?:health|ping|metrics|version|load|v1/models) HTTP/1\.[01]" 200',
        "A check that was answered.",
    ),
    _entry("PROGRESS", r"^(?:Loading \w+ checkpoint shards|Capturing CUDA graphs?)\b.*\|", "A progress bar."),
    _entry(
        "KERNEL_INFO",
        r"^Final IR op priority after setting platform defaults|deep_gemm not found in site-packages"
        r"|^Skipping CuTeDSL warmup",
        "vLLM says which kernels it uses.",
    ),
    _entry("THREAD_COUNT", r"^Reducing Torch threads from \d+ to \d+", "vLLM sets its own number of threads."),
    _entry("SCALE_OUT", r"^Scale-out endpoints are disabled", "An option that is off unless asked for."),
    _entry(
        "CLIENT_WRONG_MODEL",
        r"^Error with model error=ErrorInfo\(.*code=404\)",
        "A client asked for a model name that this instance does not serve.",
    ),
)
MAX_SEARCHED = 2048
# Errors that are a client's doing are noise too; any other ERROR line stays.
_ERROR_CODES = frozenset({"CLIENT_WRONG_MODEL"})


def classify_noise(line: LogLine) -> Noise | None:
    """Return what is known about a harmless line, None for one that should be seen."""
    for entry in _ENTRIES:
        if entry.pattern.search(line.message[:MAX_SEARCHED]) is not None:
            if line.level in ("ERROR", "CRITICAL") and entry.noise.code not in _ERROR_CODES:
                return None
            return entry.noise
    return None
