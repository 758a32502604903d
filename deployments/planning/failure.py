"""Names the cause of a failed start or a death from the log: the first root error, not the last line.

vLLM ends nearly every failure with "Engine core initialization failed. See root cause above"; the cause is
the first error a worker or the engine printed. Rules are tried on each line from the top; the first line that
any rule knows is the cause. Where none is known, the first exception that is not one of the generic ones is
quoted as it stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.planning.failure_rules import GENERIC, NOTICE, RULES, Rule
from deployments.planning.log_lines import LogLine, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EVIDENCE_LIMIT = 600
# Longer lines are cut before patterns with gaps run over them: a host could make those slow.
MAX_SEARCHED = 4096
_SERVING = "Application startup complete"
_CODE_INDENT = "    "
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?$")
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`line_number` counts from 1 in the lines given.

    None, like `evidence_line`, where the log says nothing.
    """

    code: str
    sentence: str
    next_step: str
    evidence_line: str | None
    line_number: int | None


def explain_failure(*, lines: Iterable[str], exit_code: int | None, exit_signal: int | None) -> Cause:
    """Return the cause of a launch's end. `lines` are those of its own log, from the first."""
    numbered = [(number, parse_line(line)) for number, line in enumerate(lines, start=1)]
    errors = [(number, line) for number, line in numbered if _may_be_error(line)]
    # What an instance survived while it started or served is not what ended it later.
    served_from = max((number for number, line in numbered if line.message.startswith(_SERVING)), default=0)
    after = [(number, line) for number, line in errors if number > served_from]
    return (
        _known_cause(after)
        or _unknown_exception(after)
        or _known_notice([item for item in numbered if item[0] > served_from])
        or _from_exit(exit_code=exit_code, exit_signal=exit_signal, has_lines=bool(numbered))
    )


def _may_be_error(line: LogLine) -> bool:
    """Drop what has a harmless level, and the source lines of a traceback, which can quote any error text."""
    return line.level not in ("DEBUG", "INFO", "WARNING") and not line.message.startswith(_CODE_INDENT)


def _known_cause(lines: Sequence[tuple[int, LogLine]]) -> Cause | None:
    for number, line in lines:
        for rule in RULES:
            match = rule.pattern.search(line.message[:MAX_SEARCHED])
            if match is not None:
                return _cause(rule=rule, match=match, line=line, number=number)
    return None


def _known_notice(lines: Sequence[tuple[int, LogLine]]) -> Cause | None:
    """What vLLM says of a death below the level of an error: looked at only when no error was printed."""
    for number, line in lines:
        match = NOTICE.pattern.search(line.message[:MAX_SEARCHED])
        if match is not None:
            return _cause(rule=NOTICE, match=match, line=line, number=number)
    return None


def _cause(*, rule: Rule, match: re.Match[str], line: LogLine, number: int) -> Cause:
    # A rule's other wording may not hold the figure: then the line itself has to say it.
    said = line.message.strip()
    figures = {name: (value or said)[:200] for name, value in match.groupdict().items()}
    return Cause(
        code=rule.code,
        sentence=_fill(rule.sentence, figures),
        next_step=_fill(rule.next_step, figures),
        evidence_line=line.message.strip()[:EVIDENCE_LIMIT],
        line_number=number,
    )


def _fill(template: str, figures: dict[str, str]) -> str:
    """Put figures in place; not str.format, because a host's text must never be read as a format."""
    return re.sub(r"\{(\w+)\}", lambda hole: figures.get(hole[1], hole[0]), template)


def _unknown_exception(lines: Sequence[tuple[int, LogLine]]) -> Cause | None:
    for number, line in lines:
        message = line.message.strip()
        if GENERIC.search(message):
            continue
        if _EXCEPTION.fullmatch(message[:EVIDENCE_LIMIT]):
            return Cause(
                code="UNKNOWN_ERROR",
                sentence=f"vLLM stopped with an error that has no explanation here yet: {message[:200]}",
                next_step="Read the log around this line; the traceback above it names the part of vLLM that failed.",
                evidence_line=message[:EVIDENCE_LIMIT],
                line_number=number,
            )
    return None


def _from_exit(*, exit_code: int | None, exit_signal: int | None, has_lines: bool) -> Cause:
    code, sentence, step = _exit_words(exit_code=exit_code, exit_signal=exit_signal, has_lines=has_lines)
    return Cause(code=code, sentence=sentence, next_step=step, evidence_line=None, line_number=None)


def _exit_words(*, exit_code: int | None, exit_signal: int | None, has_lines: bool) -> tuple[str, str, str]:
    if exit_signal == 9:
        return (
            "KILLED",
            "The process was killed with SIGKILL, by the kernel when memory ran out or by somebody.",
            (
                "Look for 'Out of memory' in the kernel's log on the host; if it is there, start fewer or"
                " smaller instances."
            ),
        )
    if exit_signal is not None:
        name = _SIGNALS.get(exit_signal, f"signal {exit_signal}")
        return (
            "ENDED_BY_SIGNAL",
            f"The process was ended by {name} and its log holds no error.",
            (
                "Find out who sent it: the audit trail lists every signal of this program, the host's own log"
                " the others."
            ),
        )
    said = "its log holds no error" if has_lines else "it wrote nothing to its log"
    if exit_code is None:
        return (
            "GONE",
            f"The process is gone, its exit code is not known, and {said}.",
            "Check whether the host was restarted; then start the instance again.",
        )
    if exit_code == 0:
        return (
            "ENDED_WITHOUT_ERROR",
            f"The process ended by itself with exit code 0 and {said}.",
            ("vLLM also ends with 0 when its engine is killed: look for somebody else's kill, then start it again."),
        )
    return (
        "EXIT_CODE",
        f"The process ended with exit code {exit_code} and {said}.",
        "Run the exact command of the plan by hand on the host to see what it says.",
    )
