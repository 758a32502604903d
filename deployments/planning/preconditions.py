"""What a plan presupposes, compared with what was seen right before the step.

The host's own `launch` verb has the last word on the port, the slot, the files and the disk; the connection on the host
key. What is judged here needs a reading of the host first: free bytes, vLLM's version, the age of the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.planning.sizes import format_gib


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`free` is bytes per device uuid, `versions` the vLLM version per executable; absent or None: not known."""

    free: Mapping[str, int | None]
    versions: Mapping[str, str | None]
    facts_age_s: int


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A precondition that does not hold: what was wanted and what was found, as a person reads it."""

    code: str
    subject: str
    wanted: str
    found: str
    message: str
    next_step: str


Condition = Mapping[str, Any]


def find_broken(conditions: Sequence[Condition], *, launch_id: str, seen: Seen) -> Broken | None:
    """Give the first one of this launch, or of the whole run, that does not hold; None when all do."""
    for condition in conditions:
        if condition.get("launch_id") not in (None, launch_id):
            continue
        check = CHECKS.get(str(condition["code"]))
        broken = check(condition, seen) if check else None
        if broken is not None:
            return broken
    return None


def _free_bytes(condition: Condition, seen: Seen) -> Broken | None:
    device, wanted = str(condition["subject"]), int(condition["wanted"])
    found = seen.free.get(device)
    if found is not None and found >= wanted:
        return None
    shown = "an unknown amount" if found is None else f"{format_gib(found)} GiB"
    return Broken(
        code="FREE_BYTES",
        subject=device,
        wanted=f"{format_gib(wanted)} GiB",
        found=shown,
        message=f"The plan needs {format_gib(wanted)} GiB free on {device}, and {shown} is free.",
        next_step="Look at the host who uses the device, then plan again.",
    )


def _vllm_version(condition: Condition, seen: Seen) -> Broken | None:
    executable, wanted = str(condition["subject"]), str(condition["wanted"])
    found = seen.versions.get(executable)
    if found == wanted:
        return None
    return Broken(
        code="VLLM_VERSION",
        subject=executable,
        wanted=wanted,
        found=found or "none",
        message=f"The plan was made for vLLM {wanted} at {executable}, and {found or 'none'} is there now.",
        next_step="Refresh the host's facts and plan again: arguments depend on the version.",
    )


def _facts_age(condition: Condition, seen: Seen) -> Broken | None:
    limit = int(condition["wanted"])
    if seen.facts_age_s <= limit:
        return None
    return Broken(
        code="FACTS_TOO_OLD",
        subject=str(condition["subject"]),
        wanted=f"at most {limit} s",
        found=f"{seen.facts_age_s} s",
        message=f"What the plan was made from is {seen.facts_age_s} s old; {limit} s are allowed.",
        next_step="Plan again.",
    )


CHECKS: Mapping[str, Callable[[Condition, Seen], Broken | None]] = {
    "free_bytes": _free_bytes,
    "vllm_version": _vllm_version,
    "facts_age_s": _facts_age,
}
