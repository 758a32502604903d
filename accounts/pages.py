"""What every page's frame needs, and the two ways a page is answered."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers

from accounts.access import environments_with

SECTIONS = [
    ("fleet", "hosts.view_host"),
    ("hosts:list", "hosts.view_host"),
    ("deployments:list", "deployments.view_deployment"),
    ("audit:list", "audit.view_entry"),
]


def navigation(request: HttpRequest) -> dict[str, object]:
    """Return the sections this user may open, by URL name, and the moment from which ages are told."""
    user = getattr(request, "user", None)
    frame: dict[str, object] = {"sections": [], "now": timezone.now()}
    if user is not None and user.is_authenticated:
        frame["sections"] = [name for name, perm in SECTIONS if environments_with(user, perm).exists()]
    return frame


def render_live(request: HttpRequest, *, page: str, fragment: str, context: dict) -> HttpResponse:
    """Return the page; or, for a refresh by htmx of the same address, the fragment that the page includes."""
    response = render(request, fragment if request.htmx else page, context)
    patch_vary_headers(response, ["HX-Request"])
    return response
