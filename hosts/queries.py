"""Reads that other apps may ask for."""

from datetime import datetime

from hosts.models import Credential, Host, HostFacts


def host_by_name(*, environment_id: int, name: str) -> Host | None:
    """The enrolled host of this name in the environment."""
    return Host.objects.filter(environment_id=environment_id, name=name, state=Host.State.ENROLLED).first()


def latest_facts(host: Host) -> HostFacts | None:
    return host.facts.order_by("-taken_at").first()


def later_uses(host: Host, *, since: datetime) -> dict[str, int]:
    """Bytes in use per device uuid, of the devices that were seen after this moment."""
    seen = host.devices.filter(use_at__gt=since).values_list("uuid", "use")
    return {uuid: use["used"] for uuid, use in seen if use and use.get("used") is not None}


def secret_names(*, environment_id: int) -> set[str]:
    """Names of the secrets that instances of this environment may be given."""
    found = Credential.objects.filter(environment_id=environment_id, kind=Credential.Kind.SECRET)
    return set(found.values_list("name", flat=True))
