"""How a step can end. Values, not exceptions: a failure is a result with a code, the numbers and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Done:
    """The step did what the plan says."""

    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The step was carried out and did not lead there: code, sentence, next step, and the evidence."""

    code: str
    message: str
    next_step: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Survives(Failed):
    """A cancel asked for its end, and the host says that something of it lives on."""


@dataclass(frozen=True)
class PreconditionFailed:
    """What the plan presupposes does not hold any more; nothing was done."""

    code: str
    message: str
    next_step: str
    wanted: str
    found: str

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"wanted": self.wanted, "found": self.found}


@dataclass(frozen=True)
class Cancelled:
    """Somebody asked to stop; what the step had started is gone again."""


Outcome = Done | Failed | PreconditionFailed | Cancelled
