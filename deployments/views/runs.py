from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts.actors import actor_of_request
from accounts.pages import render_live
from deployments.access import run_to, run_to_see
from deployments.pages.runs import run_page
from deployments.services.cancelling import request_cancel, request_force
from deployments.services.runs import RunRefused


@require_safe
def run_detail(request, pk: int):
    context = run_page(run_to_see(request.user, pk))
    return render_live(request, page="deployments/run.html", fragment="deployments/_run.html", context=context)


@require_POST
def run_cancel(request, pk: int):
    run = run_to(request.user, pk, "deployments.stop_deployment")
    request_cancel(run=run, by=actor_of_request(request), now=timezone.now())
    return redirect("deployments:run-detail", pk=pk)


@require_POST
def run_force(request, pk: int):
    run = run_to(request.user, pk, "deployments.force_cancel")
    try:
        request_force(run=run, by=actor_of_request(request), now=timezone.now())
    except RunRefused as refused:
        context = run_page(run_to_see(request.user, pk)) | {"refusal": refused.problem}
        return render(request, "deployments/run.html", context, status=422)
    return redirect("deployments:run-detail", pk=pk)
