"""The fleet page: what is wrong first, then hosts and deployments."""


from deployments.models import Launch
from deployments.pages.deployments import deployment_rows
from deployments.pages.launches import launch_trouble
from deployments.planning.states import LaunchState
from hosts.pages import host_cards

# Orphans hold memory nobody serves with; a failure is there until the next start of its slot.
ORDER = {LaunchState.ORPHANED: 0, LaunchState.FAILED: 1, LaunchState.DEGRADED: 2, LaunchState.UNVERIFIED: 3}


def fleet_page(user) -> dict:
    """A fixed number of queries, however large the fleet."""
    cards = host_cards(user)
    rows = deployment_rows(user)
    launches = [launch for row in rows for launch in row["launches"]]
    return {
        "cards": cards,
        "rows": rows,
        "launch_troubles": launch_troubles(launches),
        "host_troubles": [card for card in cards if card["trouble"]],
        "states": fleet_states(launches),
    }


def launch_troubles(launches: list[Launch]) -> list[dict]:
    wrong = [launch for launch in launches if launch.state in ORDER]
    wrong.sort(key=lambda launch: (ORDER[LaunchState(launch.state)], launch.instance.name))
    return [{"launch": launch, "problem": launch_trouble(launch), "level": level(launch)} for launch in wrong]


def level(launch: Launch) -> str:
    return "bad" if launch.state in (LaunchState.ORPHANED, LaunchState.FAILED) else "attention"


def fleet_states(launches: list[Launch]) -> list[dict]:
    """How many instances are in which state, in the order of a life; states that nobody is in are left out."""
    return [
        {"state": state.value, "count": count}
        for state in LaunchState
        if (count := sum(launch.state == state for launch in launches)) and state != LaunchState.STOPPED
    ]
