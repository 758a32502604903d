"""Why a plan cannot be made: stable codes, each with one sentence, the numbers and the next step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class RefusalCode(StrEnum):
    NO_VLLM = "NO_VLLM"
    VLLM_NOT_FOUND = "VLLM_NOT_FOUND"
    VLLM_VERSION_UNKNOWN = "VLLM_VERSION_UNKNOWN"
    MODEL_MISSING = "MODEL_MISSING"
    MODEL_UNREADABLE = "MODEL_UNREADABLE"
    MODEL_CONFIG_UNREADABLE = "MODEL_CONFIG_UNREADABLE"
    MODEL_WITHOUT_WEIGHTS = "MODEL_WITHOUT_WEIGHTS"
    PATH_OUTSIDE_ROOTS = "PATH_OUTSIDE_ROOTS"
    DEVICE_UNKNOWN = "DEVICE_UNKNOWN"
    DEVICE_PARTITIONED = "DEVICE_PARTITIONED"
    DEVICE_MEMORY_UNKNOWN = "DEVICE_MEMORY_UNKNOWN"
    NOT_ENOUGH_DEVICES = "NOT_ENOUGH_DEVICES"
    MEMORY_TOO_SMALL = "MEMORY_TOO_SMALL"
    KV_CACHE_TOO_SMALL = "KV_CACHE_TOO_SMALL"
    PORT_TAKEN = "PORT_TAKEN"
    NO_FREE_PORT = "NO_FREE_PORT"
    FACTS_TOO_OLD = "FACTS_TOO_OLD"
    HOST_CHANGED = "HOST_CHANGED"
    FLAG_UNKNOWN_IN_VERSION = "FLAG_UNKNOWN_IN_VERSION"
    ARGUMENT_OURS = "ARGUMENT_OURS"
    ARGUMENT_LOADS_CODE = "ARGUMENT_LOADS_CODE"
    VARIABLE_OURS = "VARIABLE_OURS"
    VARIABLE_LOADS_CODE = "VARIABLE_LOADS_CODE"
    TP_DOES_NOT_DIVIDE_HEADS = "TP_DOES_NOT_DIVIDE_HEADS"
    CONTEXT_TOO_LONG = "CONTEXT_TOO_LONG"
    ALREADY_RUNNING = "ALREADY_RUNNING"
    NOTHING_TO_STOP = "NOTHING_TO_STOP"
    NOTHING_TO_RESTART = "NOTHING_TO_RESTART"
    RESTART_MOVES = "RESTART_MOVES"
    LOGOUT_KILLS = "LOGOUT_KILLS"
    WRONG_HOST = "WRONG_HOST"
    SECRET_MISSING = "SECRET_MISSING"  # noqa: S105
    DEPLOYMENT_IN_USE = "DEPLOYMENT_IN_USE"
    DEPLOYMENT_ARCHIVED = "DEPLOYMENT_ARCHIVED"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason. `numbers` holds what was compared: bytes, ports, versions; JSON-able."""

    code: RefusalCode
    message: str
    next_step: str
    numbers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """All reasons at once, in the order of the questions asked.

    Host, vLLM, model, arguments, devices, memory, ports.
    """

    reasons: tuple[Refusal, ...]
