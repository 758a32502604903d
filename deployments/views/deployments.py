from django.views.decorators.http import require_safe

from accounts.access import requires_somewhere
from accounts.pages import render_live
from deployments.access import SEE, deployment_to
from deployments.pages.deployments import deployment_page, deployment_rows

may_see = requires_somewhere(SEE)


@require_safe
def deployment_list(request):
    may_see(request.user)
    context = {"rows": deployment_rows(request.user)}
    return render_live(request, page="deployments/list.html", fragment="deployments/_list.html", context=context)


@require_safe
def deployment_detail(request, pk: int):
    context = deployment_page(deployment_to(request.user, pk), request.user)
    return render_live(request, page="deployments/detail.html", fragment="deployments/_detail.html", context=context)
