"""Where a worker is killed: before or after it writes down a step of a run, by SIGKILL to itself."""

import itertools
import os
import signal

MOMENTS = ("before", "after")
STEPS = {
    "start": ("launching", "launched", "log", "phase_seen", "progress", "verifying", "verified"),
    "restart": (
        "stopping",
        "stopped",
        "launching",
        "launched",
        "log",
        "phase_seen",
        "progress",
        "verifying",
        "verified",
    ),
    "stop": ("stopping", "stopped"),
}
# One after another these make a deployment's life: each kind of run finds what it needs.
KINDS = ("start", "restart", "stop")


def every_boundary() -> dict[str, itertools.cycle]:
    """For each kind of run its boundaries, again and again, the first to the last."""
    return {kind: itertools.cycle(itertools.product(steps, MOMENTS)) for kind, steps in STEPS.items()}


def die_at(step: str, moment: str) -> None:
    """From now on this process ends there, the first time it comes to it."""
    from deployments.services.listening import WorkerListener

    written = getattr(WorkerListener, step)

    def dying(self, *args, **kwargs):
        if moment == "after":
            written(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(WorkerListener, step, dying)
