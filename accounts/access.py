"""Asking for rights: one place, deny by default.

A stranger to an object's environment gets 404, as if it did not exist; who may see it but not do this gets 403.
"""

from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404

from accounts.backends import granted
from accounts.models import Environment


def environments_with(user, perm: str) -> QuerySet[Environment]:
    """The environments in which the user has this permission."""
    if not user.is_active:
        return Environment.objects.none()
    if user.is_superuser:
        return Environment.objects.all()
    rights = granted(user)
    if perm in rights.get(None, frozenset()):
        return Environment.objects.all()
    return Environment.objects.filter(pk__in=[key for key, perms in rights.items() if key and perm in perms])


def visible(queryset: QuerySet, user, perm: str, *, path: str = "environment") -> QuerySet:
    """The rows of environments in which the user has the permission."""
    return queryset.filter(**{f"{path}__in": environments_with(user, perm)})


def fetch(queryset: QuerySet, user, *, see: str, do: str | None = None, **lookup):
    """The one row, authorised: 404 where the user may not see it, 403 where they may see but not do."""
    row = queryset.filter(**lookup).first()
    if row is None or not user.has_perm(see, row):
        raise Http404
    if do is not None and not user.has_perm(do, row):
        raise PermissionDenied(do)
    return row


def require(user, perm: str, obj=None) -> None:
    if not user.has_perm(perm, obj):
        raise PermissionDenied(perm)


def requires_somewhere(perm: str) -> Callable:
    """For pages about no single object: the user must have the permission in at least one environment."""

    def check(user) -> None:
        if not environments_with(user, perm).exists() and not user.is_superuser:
            raise PermissionDenied(perm)

    return check
