"""Who acts: a signed-in user, an operating-system user at the command line, or a part of the application."""

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True)
class Actor:
    """`label` outlives the account: it is what the audit keeps. `user_id` is None for commands and processes."""

    label: str
    user_id: int | None = None
    address: str = ""
    request_id: str = ""


def actor_of_request(request) -> Actor:
    return Actor(
        label=request.user.get_username(),
        user_id=request.user.pk,
        address=client_address(request),
    )


def client_address(request) -> str:
    """Where the request came from: past as many proxies as the installation says it has, and not one more.

    Each proxy appends the address it saw to X-Forwarded-For; whatever stands further left anybody can have written.
    """
    hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
    proxies = settings.TRUSTED_PROXIES
    if proxies and len(hops) >= proxies:
        return hops[-proxies][:45]
    return request.META.get("REMOTE_ADDR") or ""


def local_actor(os_user: str) -> Actor:
    """Someone at the command line of the application's own machine."""
    return Actor(label=f"local:{os_user}")


def system_actor(process: str) -> Actor:
    """The application itself: worker, watcher, beat."""
    return Actor(label=f"system:{process}")
