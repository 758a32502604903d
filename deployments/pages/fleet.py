"""The fleet page: what is wrong first, then deployments and hosts."""

from deployments.pages.deployments import deployment_rows
from deployments.pages.troubles import count_states, launch_troubles
from hosts.pages import host_cards


def fleet_page(user) -> dict:
    """Gather everything in a fixed number of queries, however large the fleet."""
    cards = host_cards(user)
    rows = deployment_rows(user)
    launches = [launch for row in rows for launch in row["launches"]]
    return {
        "cards": cards,
        "rows": rows,
        "launch_troubles": launch_troubles(launches),
        "host_troubles": [card for card in cards if card["trouble"]],
        "states": count_states(launches),
    }
