"""The one failure that is worth a second try as it is: a port that vLLM chooses for itself, taken by another start.

Below 0.28 the workers of an engine meet at `tcp://127.0.0.1:PORT`, where PORT was free a moment before (vLLM issues 39015
and 43206); from 0.28 on they meet in a file. A launch that ended never comes back, so the second try has an id of its
own, chosen when the plan is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hosts.facts.versions import VllmVersion

RENDEZVOUS_IN_A_FILE = (0, 28)
WORTH_A_RETRY = ("RENDEZVOUS_PORT_TAKEN",)


def may_need_retry(version: VllmVersion) -> bool:
    return version.release[:2] < RENDEZVOUS_IN_A_FILE


def retry_intent(launch_id: str | None) -> dict[str, Any] | None:
    """Return what the intent says of a second try; None where there is none."""
    return None if launch_id is None else {"launch_id": launch_id, "on": list(WORTH_A_RETRY)}


def second_try(entry: Mapping[str, Any], *, code: str) -> dict[str, Any] | None:
    """Return the launch that follows this one after a failure with this code; None where that is the end of it."""
    retry = entry.get("retry")
    return following_try(entry) if retry and code in retry["on"] else None


def following_try(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the launch that a plan has for a second try of this one; None where it has none."""
    retry = entry.get("retry")
    if not retry:
        return None
    return {**entry, "launch_id": retry["launch_id"], "replaces": entry["launch_id"], "retry": None}


def planned_launch(intent: Mapping[str, Any], launch_id: str) -> dict[str, Any]:
    """Return what a plan's intent says of a launch, be it a second try. Raises LookupError where it does not name it."""
    for entry in intent["launches"]:
        if entry["launch_id"] == launch_id:
            return dict(entry)
        again = following_try(entry)
        if again is not None and again["launch_id"] == launch_id:
            return again
    raise LookupError(launch_id)
