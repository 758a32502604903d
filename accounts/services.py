"""Setting up people and roles."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import transaction

from accounts.models import Environment, Role, RoleAssignment
from accounts.roles import SHIPPED


class UnknownPermissions(Exception):
    """A shipped role names a permission that no model declares: our own mistake."""


@transaction.atomic
def ensure_shipped_roles() -> None:
    """Put the shipped roles and a first environment there; roles that exist keep what administrators made of them."""
    for slug, (name, permissions) in SHIPPED.items():
        role, created = Role.objects.get_or_create(slug=slug, defaults={"name": name})
        if created:
            role.permissions.set(find_permissions(permissions))
    if not Environment.objects.exists():
        Environment.objects.create(name="Default", slug="default")


def find_permissions(names: list[str]) -> list[Permission]:
    found = {
        f"{permission.content_type.app_label}.{permission.codename}": permission
        for permission in Permission.objects.select_related("content_type")
    }
    missing = [name for name in names if name not in found]
    if missing:
        raise UnknownPermissions(", ".join(missing))
    return [found[name] for name in names]


@transaction.atomic
def create_administrator(*, username: str, password: str):
    """A user with the administrator's role everywhere."""
    user = get_user_model().objects.create_user(username=username, password=password)
    assign_role(role=Role.objects.get(slug="administrator"), user=user, environment=None)
    return user


def assign_role(*, role: Role, user, environment: Environment | None) -> RoleAssignment:
    assignment, _ = RoleAssignment.objects.get_or_create(role=role, user=user, group=None, environment=environment)
    return assignment
