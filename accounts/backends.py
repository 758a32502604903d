"""The permission back end: a right comes from a role, and a role holds in an environment."""

from django.contrib.auth.backends import ModelBackend
from django.db.models import Q

from accounts.models import RoleAssignment


class RoleBackend(ModelBackend):
    """Answers `user.has_perm(perm, obj)` by the roles assigned in the object's environment.

    Without an object only assignments to all environments count: "may see every host" is not implied by
    "may see the hosts of one environment". Inactive users have no right; superusers have every.
    """

    def has_perm(self, user_obj, perm, obj=None) -> bool:
        if not user_obj.is_active or user_obj.is_anonymous:
            return False
        if user_obj.is_superuser:
            return True
        rights = granted(user_obj)
        if perm in rights.get(None, frozenset()):
            return True
        environment_id = getattr(obj, "environment_id", None)
        return environment_id is not None and perm in rights.get(environment_id, frozenset())

    def get_all_permissions(self, user_obj, obj=None) -> set[str]:
        if not user_obj.is_active or user_obj.is_anonymous:
            return set()
        rights = granted(user_obj)
        return set(rights.get(None, frozenset()) | rights.get(getattr(obj, "environment_id", 0), frozenset()))

    def has_module_perms(self, user_obj, app_label) -> bool:
        return user_obj.is_active and any(
            perm.startswith(f"{app_label}.") for perms in granted(user_obj).values() for perm in perms
        )


def granted(user) -> dict[int | None, frozenset[str]]:
    """Permission names by environment id (None: everywhere); one query, kept on the user object of this request."""
    cached = getattr(user, "_granted_permissions", None)
    if cached is not None:
        return cached
    rows = (
        RoleAssignment.objects.filter(Q(user=user) | Q(group__user=user))
        .values_list(
            "environment_id",
            "role__permissions__content_type__app_label",
            "role__permissions__codename",
        )
        .distinct()
    )
    collected: dict[int | None, set[str]] = {}
    for environment_id, app_label, codename in rows:
        if codename:
            collected.setdefault(environment_id, set()).add(f"{app_label}.{codename}")
    user._granted_permissions = {key: frozenset(value) for key, value in collected.items()}  # noqa: SLF001
    return user._granted_permissions  # noqa: SLF001
