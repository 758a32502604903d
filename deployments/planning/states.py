r"""The lives of a launch and of a run: their states, the moves that exist, their colours.

A launch (one start of one instance):

    PLANNED -> LAUNCHING -> STARTING -> READY <-> DEGRADED
       |          |            |  \       |  \       |
       |          |            |   `> UNVERIFIED <----'
       |          |            |          |          |
       |          v            v          v          v
       |        FAILED <---- any of them: the process ended unasked, or a check says it cannot serve
       |                       any of them -> STOPPING -> STOPPED
       v                       any of them -> ORPHANED  (the leader is gone, others of its processes live)
    STOPPED                                  ORPHANED -> STOPPING -> STOPPED, or FAILED when it ends by itself

READY, DEGRADED and UNVERIFIED change into each other. The worker that holds the run makes the moves up to
READY; the watcher makes those between the serving states, FAILED and ORPHANED afterwards; a stop run makes
STOPPING and STOPPED.

A run (one execution of one plan):

    QUEUED -> RUNNING -> SUCCEEDED | FAILED | PRECONDITION_FAILED | CANCELLED | ERRORED
       |         `-> QUEUED  (its worker was lost; the next one adopts what it started)
       `-> CANCELLED | PRECONDITION_FAILED | ERRORED

FAILED means the fleet said no and the cause is named; ERRORED means that this program is wrong.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Tone = Literal["neutral", "progress", "good", "attention", "bad"]


class LaunchState(StrEnum):
    PLANNED = "planned"
    LAUNCHING = "launching"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ORPHANED = "orphaned"


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PRECONDITION_FAILED = "precondition_failed"
    CANCELLED = "cancelled"
    ERRORED = "errored"


_L = LaunchState
_R = RunState
_ENDS = frozenset({_L.FAILED, _L.STOPPING, _L.ORPHANED})
_SERVING = frozenset({_L.READY, _L.DEGRADED, _L.UNVERIFIED})

LAUNCH_MOVES: Mapping[LaunchState, frozenset[LaunchState]] = {
    _L.PLANNED: frozenset({_L.LAUNCHING, _L.STOPPED, _L.FAILED}),
    _L.LAUNCHING: frozenset({_L.STARTING}) | _ENDS,
    _L.STARTING: _SERVING | _ENDS,
    _L.READY: (_SERVING - {_L.READY}) | _ENDS,
    _L.DEGRADED: (_SERVING - {_L.DEGRADED}) | _ENDS,
    _L.UNVERIFIED: (_SERVING - {_L.UNVERIFIED}) | _ENDS,
    # A failed start can leave processes behind, which are then found as orphans and stopped.
    _L.FAILED: frozenset({_L.ORPHANED, _L.STOPPING}),
    # A stop that met a process which does not die ends as FAILED with that named, or leaves orphans.
    _L.STOPPING: frozenset({_L.STOPPED, _L.FAILED, _L.ORPHANED}),
    # Its last processes may end by themselves: then it failed, and its log says why.
    _L.ORPHANED: frozenset({_L.STOPPING, _L.FAILED}),
    _L.STOPPED: frozenset(),
}
RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    _R.QUEUED: frozenset({_R.RUNNING, _R.CANCELLED, _R.PRECONDITION_FAILED, _R.ERRORED}),
    _R.RUNNING: frozenset({_R.QUEUED, _R.SUCCEEDED, _R.FAILED, _R.PRECONDITION_FAILED, _R.CANCELLED, _R.ERRORED}),
    _R.SUCCEEDED: frozenset(),
    _R.FAILED: frozenset(),
    _R.PRECONDITION_FAILED: frozenset(),
    _R.CANCELLED: frozenset(),
    _R.ERRORED: frozenset(),
}

LAUNCH_TERMINAL = frozenset({_L.FAILED, _L.STOPPED})
LAUNCH_ACTIVE = frozenset(_L) - LAUNCH_TERMINAL
# States in which an instance answers requests or may answer them.
LAUNCH_SERVING = _SERVING
RUN_TERMINAL = frozenset({_R.SUCCEEDED, _R.FAILED, _R.PRECONDITION_FAILED, _R.CANCELLED, _R.ERRORED})
RUN_ACTIVE = frozenset(_R) - RUN_TERMINAL

LAUNCH_TONE: Mapping[LaunchState, Tone] = {
    _L.PLANNED: "neutral",
    _L.LAUNCHING: "progress",
    _L.STARTING: "progress",
    _L.READY: "good",
    _L.DEGRADED: "attention",
    _L.UNVERIFIED: "attention",
    _L.FAILED: "bad",
    _L.STOPPING: "progress",
    _L.STOPPED: "neutral",
    _L.ORPHANED: "bad",
}
RUN_TONE: Mapping[RunState, Tone] = {
    _R.QUEUED: "neutral",
    _R.RUNNING: "progress",
    _R.SUCCEEDED: "good",
    _R.FAILED: "bad",
    _R.PRECONDITION_FAILED: "attention",
    _R.CANCELLED: "neutral",
    _R.ERRORED: "bad",
}


def is_allowed_launch_move(*, before: LaunchState, after: LaunchState) -> bool:
    return after in LAUNCH_MOVES[before]


def is_allowed_run_move(*, before: RunState, after: RunState) -> bool:
    return after in RUN_MOVES[before]
