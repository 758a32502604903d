"""How long each part of a start or stop may take, in seconds."""

from dataclasses import dataclass


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
    tick: float = 1.0
