"""Reads that other apps may ask for."""

from hosts.models import Credential, Host, HostFacts


def host_by_name(*, environment_id: int, name: str) -> Host | None:
    """The enrolled host of this name in the environment."""
    return Host.objects.filter(environment_id=environment_id, name=name, state=Host.State.ENROLLED).first()


def latest_facts(host: Host) -> HostFacts | None:
    return host.facts.order_by("-taken_at").first()


def secret_names(*, environment_id: int) -> set[str]:
    """Names of the secrets that instances of this environment may be given."""
    found = Credential.objects.filter(environment_id=environment_id, kind=Credential.Kind.SECRET)
    return set(found.values_list("name", flat=True))
