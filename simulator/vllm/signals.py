"""What each process of an instance does at each signal, as a table.

Measured on vLLM 0.32.0 (CPU build) and 0.25.1 (H200). SIGKILL, SIGSTOP and SIGCONT are the kernel's: what the
*others* do after a death is in instance.py.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    IMPORTS = "imports"  # no child yet, Python's own handlers
    STARTING = "starting"
    SERVING = "serving"
    CLOSING = "closing"


class Effect(StrEnum):
    DIE = "die"  # by the signal, children become orphans
    SWALLOW_FIRST = "swallow_first"  # the first does nothing, the second ends everything
    SHUT_DOWN = "shut_down"
    LEAVE = "leave"  # ends itself in good order
    IGNORE = "ignore"


@dataclass(frozen=True)
class Reaction:
    role: str
    stage: Stage | None  # None: any
    signals: frozenset[int]
    effect: Effect


_ASK = frozenset({signal.SIGTERM, signal.SIGINT})
REACTIONS = (
    Reaction("api_server", None, frozenset({signal.SIGHUP, signal.SIGQUIT}), Effect.DIE),
    Reaction("api_server", Stage.IMPORTS, _ASK, Effect.DIE),
    Reaction("api_server", Stage.STARTING, _ASK, Effect.SWALLOW_FIRST),
    Reaction("api_server", Stage.SERVING, _ASK, Effect.SHUT_DOWN),
    Reaction("api_server", Stage.CLOSING, _ASK, Effect.IGNORE),
    Reaction("engine_core", None, _ASK, Effect.LEAVE),
    Reaction("engine_core", None, frozenset({signal.SIGHUP, signal.SIGQUIT}), Effect.DIE),
    Reaction("worker", None, frozenset({signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM}), Effect.DIE),
    Reaction("worker", None, frozenset({signal.SIGINT}), Effect.IGNORE),
    Reaction("resource_tracker", None, _ASK, Effect.IGNORE),  # CPython's tracker ignores both
    Reaction("resource_tracker", None, frozenset({signal.SIGHUP, signal.SIGQUIT}), Effect.DIE),
)


def choose_effect(*, role: str, stage: Stage, number: int) -> Effect:
    """Find the row that matches; IGNORE where none does (SIGCHLD, SIGUSR1 …)."""
    for row in REACTIONS:
        if row.role == role and row.stage in (None, stage) and number in row.signals:
            return row.effect
    return Effect.IGNORE
