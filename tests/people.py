"""Four people as tests meet them: each signs in with the password `PASSWORD`."""

from django.contrib.auth import get_user_model

from accounts.models import Environment, Role
from accounts.services import assign_role, ensure_shipped_roles

PASSWORD = "correct-horse-battery"


def person(name: str, *, role: str | None = None, environment: Environment | None = None):
    """A user with a shipped role, in one environment or (None) everywhere; without a role, a stranger."""
    ensure_shipped_roles()
    user = get_user_model().objects.create_user(username=name, password=PASSWORD)
    if role is not None:
        assign_role(role=Role.objects.get(slug=role), user=user, environment=environment)
    return user


def administrator(environment: Environment | None = None):
    return person("ada", role="administrator", environment=environment)


def operator(environment: Environment | None = None):
    return person("olga", role="operator", environment=environment)


def viewer(environment: Environment | None = None):
    return person("vera", role="viewer", environment=environment)


def stranger():
    """Signed in, and without any role."""
    return person("stan")
