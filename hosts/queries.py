"""Reads that other apps may ask for."""

from hosts.models import Host, HostFacts


def host_by_name(*, environment_id: int, name: str) -> Host | None:
    """The enrolled host of this name in the environment."""
    return Host.objects.filter(environment_id=environment_id, name=name, state=Host.State.ENROLLED).first()


def latest_facts(host: Host) -> HostFacts | None:
    return host.facts.order_by("-taken_at").first()
