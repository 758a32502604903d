"""How long each part of a start or stop may take, in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.planning.phases import Phase

# Seconds in one phase. Longest seen on an H200, cold: 40 s of imports before the first line, 12 s to workers that are
# connected, 29 s of compiling, 110 s from the graphs to the engine that is ready (FlashInfer tunes its kernels).
PHASES: Mapping[Phase, float] = {
    Phase.WAITING: 600.0,
    Phase.PROCESS: 300.0,
    Phase.CONFIG: 300.0,
    Phase.ENGINE: 600.0,  # where workers that cannot find each other hang
    Phase.DISTRIBUTED: 300.0,
    Phase.LOADED: 900.0,
    Phase.COMPILING: 1200.0,
    Phase.PROFILED: 600.0,
    Phase.KV_CACHE: 900.0,
    Phase.GRAPHS: 900.0,
    Phase.ENGINE_READY: 300.0,
    Phase.HTTP: 300.0,
}
# Weights may lie on a slow network disk.
SLOWEST_LOADING = 25 * 1024 * 1024  # bytes a second
LEAST_LOADING = 600.0


@dataclass(frozen=True)
class Limits:
    """Defaults for one GPU; vLLM's own waiting has no end (its issue 48031), so these are the only deadlines there are."""

    launch: float = 60.0
    start: float = 1800.0  # from the launch to "Application startup complete."
    quiet: float = 900.0  # without a new log line
    probe: float = 30.0  # for the answer of the model
    probe_attempts: int = 3
    probe_pause: float = 1.0
    stop_grace: float = 30.0
    second_term: float = 10.0
    memory_back: float = 15.0  # for the driver, after the last process has ended
    tick: float = 1.0
    phases: Mapping[Phase, float] = field(default_factory=lambda: PHASES)

    @property
    def stop(self) -> float:
        """Seconds after which a stop that has not answered is one that never will."""
        return self.stop_grace * 2 + 30

    def of_phase(self, phase: Phase, *, weights: int) -> float:
        """Seconds that this phase may take; loading has as long as its weights need on the slowest disk."""
        if phase is Phase.LOADING:
            return max(LEAST_LOADING, weights / SLOWEST_LOADING)
        return self.phases.get(phase, self.start)
