from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.http import require_safe

from accounts.urls import routes as account_routes
from audit.sign_in import record_sign_in
from deployments.views.fleet import fleet


@login_not_required
@require_safe
def alive(_request: HttpRequest) -> HttpResponse:
    """For a load balancer: this process answers. Says nothing of the fleet."""
    return HttpResponse("ok", content_type="text/plain")


urlpatterns = [
    path("", fleet, name="fleet"),
    path("alive/", alive, name="alive"),
    path("accounts/", include(account_routes(record_sign_in=record_sign_in))),
    path("hosts/", include("hosts.urls")),
    path("deployments/", include("deployments.urls")),
    path("audit/", include("audit.urls")),
]

handler403 = "fleetadmin.errors.forbidden"
handler404 = "fleetadmin.errors.not_found"
handler500 = "fleetadmin.errors.server_error"
