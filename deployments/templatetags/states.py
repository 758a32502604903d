"""States as words and colours, from the one table beside the states."""

from datetime import datetime

from django import template
from django.utils.translation import gettext_lazy as _

from deployments.pages.launches import held_memory
from deployments.planning.phases import PHASE_LABEL, PHASE_ORDER, Phase
from deployments.planning.states import LAUNCH_ACTIVE, LAUNCH_TONE, RUN_TONE, LaunchState, RunState

register = template.Library()
PHASES = frozenset(phase.value for phase in Phase)
STEP_TONE = {
    "waiting": "neutral",
    "running": "progress",
    "done": "good",
    "failed": "bad",
    "skipped": "neutral",
}
STEPS = {
    "launch": _("Launch"),
    "follow_start": _("Follow the start"),
    "verify": _("Verify"),
    "stop": _("Stop"),
    "sweep": _("Sweep"),
}


def words(state: str) -> str:
    return state.replace("_", " ")


@register.inclusion_tag("_shared/badge.html")
def launch_badge(state: str) -> dict:
    return {"label": words(state), "tone": LAUNCH_TONE[LaunchState(state)]}


@register.inclusion_tag("_shared/badge.html")
def run_badge(state: str) -> dict:
    return {"label": words(state), "tone": RUN_TONE[RunState(state)]}


@register.inclusion_tag("_shared/badge.html")
def step_badge(state: str) -> dict:
    return {"label": state, "tone": STEP_TONE[state]}


@register.filter
def phase_label(phase: str) -> str:
    return PHASE_LABEL[Phase(phase)] if phase in PHASES else phase


@register.filter
def phase_steps(launch) -> list[dict]:
    """Return the phases the log told with the seconds since the launch, the current one, and those ahead.

    One that the log never told is left out once a later one was told: nothing is shown that was not seen.
    """
    seen = {item["phase"]: item["at"] for item in launch.progress.get("seen", [])}
    current = PHASE_ORDER.index(Phase(launch.phase)) if launch.phase in PHASES else 0
    began = launch.launched_at
    return [
        {
            "label": PHASE_LABEL[phase],
            "place": place_of(position, current),
            "seconds": (datetime.fromisoformat(seen[phase.value]) - began).total_seconds()
            if phase.value in seen and began
            else None,
        }
        for position, phase in enumerate(PHASE_ORDER)
        if (phase.value in seen or position >= current) and (phase is not Phase.ENDING or position == current)
    ]


def place_of(position: int, current: int) -> str:
    if position < current or position == current == PHASE_ORDER.index(Phase.LISTENING):
        return "passed"
    return "current" if position == current else "ahead"


@register.filter
def is_live(state: str) -> bool:
    return LaunchState(state) in LAUNCH_ACTIVE


@register.filter
def held(launch) -> int | None:
    """Device memory its processes were last seen to hold; None where none was read."""
    return held_memory(launch)


@register.filter
def device_bytes(process: dict) -> int | None:
    readings = [count for count in (process.get("device_memory") or {}).values() if count is not None]
    return sum(readings) if readings else None


@register.filter
def step_words(name: str) -> str:
    return STEPS.get(name, words(name))
