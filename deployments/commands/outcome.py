"""How a command ends: an exit code, a JSON body, and lines for people."""

from dataclasses import dataclass, field
from typing import Any

OK = 0
FAILED = 1  # it was carried out and did not succeed
REFUSED = 2  # it was refused; nothing was done
NOT_PERMITTED = 3
TIMED_OUT = 4  # --wait ended before the work did; it goes on
NOT_FOUND = 5


@dataclass(frozen=True)
class Outcome:
    code: int
    body: dict[str, Any]
    lines: list[str] = field(default_factory=list)


def refused(problem: dict[str, Any]) -> Outcome:
    return Outcome(REFUSED, {"refused": [problem]}, problem_lines(problem))


def problem_lines(problem: dict[str, Any]) -> list[str]:
    return [f"{problem['code']}: {problem['message']}", f"  {problem['next_step']}"]


def not_found(what: str) -> Outcome:
    problem = {
        "code": "NOT_FOUND",
        "message": f"{what} is not known here.",
        "next_step": "See `fleet hosts` and `fleet status`.",
    }
    return Outcome(NOT_FOUND, {"refused": [problem]}, problem_lines(problem))
