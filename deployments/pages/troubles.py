"""What is wrong with launches, worst first; equal failures of one deployment are one entry."""

from deployments.models import Launch
from deployments.pages.launches import launch_trouble
from deployments.planning.states import LaunchState

# Orphans hold memory nobody serves with; a failure is there until the next start of its slot.
ORDER = {LaunchState.ORPHANED: 0, LaunchState.FAILED: 1, LaunchState.DEGRADED: 2, LaunchState.UNVERIFIED: 3}
MOST_NAMES = 8


def launch_troubles(launches: list[Launch]) -> list[dict]:
    """Return one entry for each thing that is wrong, with the launches it concerns."""
    groups: dict[tuple, list[Launch]] = {}
    for launch in launches:
        if launch.state in ORDER:
            groups.setdefault(group_key(launch), []).append(launch)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[1][0].instance.name))
    return [
        {
            "launches": members[:MOST_NAMES],
            "more": len(members) - MOST_NAMES,
            "first": members[0],
            "problem": launch_trouble(members[0]),
            "level": level(members[0]),
        }
        for _key, members in ordered
    ]


def group_key(launch: Launch) -> tuple:
    """Tell which launches are one entry. An orphan stands alone: what it holds is its own."""
    cause = launch.cause if launch.state == LaunchState.FAILED else launch.verdict
    alone = launch.pk if launch.state == LaunchState.ORPHANED else None
    return ORDER[LaunchState(launch.state)], launch.deployment_id, (cause or {}).get("code"), alone


def level(launch: Launch) -> str:
    return "bad" if launch.state in (LaunchState.ORPHANED, LaunchState.FAILED) else "attention"


def count_states(launches: list[Launch]) -> list[dict]:
    """Count instances per state, in the order of a life; states that nobody is in are left out."""
    return [
        {"state": state.value, "count": count}
        for state in LaunchState
        if (count := sum(launch.state == state for launch in launches)) and state != LaunchState.STOPPED
    ]
