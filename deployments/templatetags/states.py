"""States as words and colours, from the one table beside the states."""

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
    """The phases of a start with where this launch is: passed, current or ahead."""
    current = PHASE_ORDER.index(Phase(launch.phase)) if launch.phase in PHASES else 0
    last = len(PHASE_ORDER) - 1
    shown = [(place, phase) for place, phase in enumerate(PHASE_ORDER) if place != last or current == last]
    listening = PHASE_ORDER.index(Phase.LISTENING)
    return [
        {
            "label": PHASE_LABEL[phase],
            "place": "passed"
            if place < current or place == current == listening
            else "current"
            if place == current
            else "ahead",
        }
        for place, phase in shown
    ]


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
