"""Pages for refusals and mistakes: a sentence and the next step."""

from django.http import HttpRequest, HttpResponse, HttpResponseServerError
from django.shortcuts import render
from django.template import loader
from django.utils.translation import gettext as _


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    problem = {
        "code": "NOT_PERMITTED",
        "message": _("Your roles do not allow this here."),
        "next_step": _("Ask an administrator for a role that includes it: %(permission)s.")
        % {"permission": str(exception) if exception and str(exception) else _("unknown")},
    }
    return render(request, "errors/problem.html", {"title": _("Not permitted"), "problem": problem}, status=403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    problem = {
        "code": "NOT_FOUND",
        "message": _("There is no such page, or it lies in an environment you may not see."),
        "next_step": _("Go back to the fleet, or ask for a role in that environment."),
    }
    return render(request, "errors/problem.html", {"title": _("Not found"), "problem": problem}, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    return HttpResponseServerError(loader.get_template("errors/server_error.html").render({}, None))
