"""Fetching hosts and credentials, authorised in the same step."""

from django.db.models import QuerySet

from accounts.access import fetch, visible
from hosts.models import Credential, Host


def hosts_for(user) -> QuerySet[Host]:
    return visible(Host.objects.select_related("environment", "credential"), user, "hosts.view_host")


def host_to_see(user, pk: int) -> Host:
    return fetch(Host.objects.select_related("environment", "credential"), user, see="hosts.view_host", pk=pk)


def host_to_change(user, pk: int) -> Host:
    return host_to(user, pk, "hosts.change_host")


def host_to(user, pk: int, perm: str) -> Host:
    """The host, for an action that needs `perm`."""
    return fetch(Host.objects.select_related("environment"), user, see="hosts.view_host", do=perm, pk=pk)


def credentials_for(user) -> QuerySet[Credential]:
    return visible(Credential.objects.select_related("environment"), user, "hosts.view_credential")


def credential_to_delete(user, pk: int) -> Credential:
    credentials = Credential.objects.select_related("environment")
    return fetch(credentials, user, see="hosts.view_credential", do="hosts.delete_credential", pk=pk)
