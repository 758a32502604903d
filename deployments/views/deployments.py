from django.contrib import messages
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from accounts.access import requires_somewhere
from accounts.actors import actor_of_request
from accounts.pages import render_live
from deployments.access import SEE, deployment_to
from deployments.pages.deployments import deployment_page, deployment_rows
from deployments.pages.plans import refused_page
from deployments.services.archiving import archive, restore

may_see = requires_somewhere(SEE)
DELETE = "deployments.delete_deployment"


@require_safe
def deployment_list(request):
    """Those in use; with `?archived=1` the archived ones."""
    may_see(request.user)
    archived = request.GET.get("archived") == "1"
    context = {"rows": deployment_rows(request.user, archived=archived), "archived": archived}
    return render_live(request, page="deployments/list.html", fragment="deployments/_list.html", context=context)


@require_safe
def deployment_detail(request, pk: int):
    context = deployment_page(deployment_to(request.user, pk), request.user)
    return render_live(request, page="deployments/detail.html", fragment="deployments/_detail.html", context=context)


@require_POST
def deployment_archive(request, pk: int):
    deployment = deployment_to(request.user, pk, DELETE)
    refused = archive(deployment=deployment, by=actor_of_request(request), now=timezone.now())
    if refused is not None:
        return render(request, "deployments/refused.html", refused_page(deployment, refused), status=422)
    messages.info(request, _("%(name)s is archived; its history stays.") % {"name": deployment.name})
    return redirect("deployments:list")


@require_POST
def deployment_restore(request, pk: int):
    deployment = deployment_to(request.user, pk, DELETE)
    restore(deployment=deployment, by=actor_of_request(request))
    return redirect("deployments:detail", pk=pk)
