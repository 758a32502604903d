"""Where a worker is killed or paused: before or after it writes down a step of a run, by a signal to itself."""

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


def signal_at(step: str, moment: str, number: signal.Signals) -> None:
    """From now on this process sends itself the signal there, the first time it comes to it."""
    from deployments.services.listening import WorkerListener

    written = getattr(WorkerListener, step)

    def signalling(self, *args, **kwargs):
        setattr(WorkerListener, step, written)
        if moment == "before":
            os.kill(os.getpid(), number)
        result = written(self, *args, **kwargs)
        if moment == "after":
            os.kill(os.getpid(), number)
        return result

    setattr(WorkerListener, step, signalling)
