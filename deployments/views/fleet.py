from django.views.decorators.http import require_safe

from accounts.access import requires_somewhere
from accounts.pages import render_live
from deployments.pages.fleet import fleet_page

may_see = requires_somewhere("hosts.view_host")


@require_safe
def fleet(request):
    may_see(request.user)
    context = fleet_page(request.user)
    return render_live(request, page="deployments/fleet.html", fragment="deployments/_fleet.html", context=context)
