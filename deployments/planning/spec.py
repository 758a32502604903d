"""What a team wants to run, as a frozen value: one DeploymentSpec per revision.

`parse_spec` reads a form or a YAML document that was already turned into a mapping;
`deployments.planning.spec_yaml` reads and writes the text. A spec that cannot be right by itself is refused
here, with the path of each wrong field; whether it fits a host is asked later, by `build_start_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

Task = Literal["generate", "embed", "score"]
DType = Literal["auto", "bfloat16", "float16", "half", "float32", "float"]
TASKS: tuple[str, ...] = get_args(Task)
DTYPES: tuple[str, ...] = get_args(DType)
AUTO = "auto"
# An argument's value: True for a bare switch, text, or several texts for a flag that takes a list.
ArgumentValue = bool | str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """`devices` is "auto" or a tuple of UUIDs, indices as nvidia-smi counts them, or "cpu".

    Sizes are bytes.
    """

    name: str
    host: str
    model: str
    served_model_name: str
    vllm: str = AUTO
    instances: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    devices: Literal["auto"] | tuple[int | str, ...] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    dtype: DType = "auto"
    gpu_memory_utilization: Decimal | None = None
    kv_cache_memory_bytes: int | None = None
    port: Literal["auto"] | int = "auto"
    address: str = "127.0.0.1"
    task: Task = "generate"
    extra_args: Mapping[str, ArgumentValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""

    @property
    def workers(self) -> int:
        """Devices that one instance needs: tensor parallel times pipeline parallel."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a spec.

    `path` names the field ("env.FOO"), "" the document; `line` counts from 1 where known.
    """

    path: str
    code: str
    message: str
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problems:
    items: tuple[Problem, ...]
