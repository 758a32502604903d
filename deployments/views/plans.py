from uuid import UUID

from django.http import Http404
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts.access import require
from accounts.actors import actor_of_request
from deployments.access import deployment_to, is_uuid, plan_to
from deployments.models import Deployment, Launch, Plan
from deployments.pages.plans import plan_page, refused_page
from deployments.planning.refusals import Refused
from deployments.services.plans import drop_plan, make_restart_plan, make_start_plan, make_stop_plan, make_sweep_plan
from deployments.services.runs import RunRefused, request_run

START, STOP, SWEEP = "deployments.start_deployment", "deployments.stop_deployment", "hosts.sweep_host"
RIGHTS = {
    Plan.Kind.START: (START,),
    Plan.Kind.STOP: (STOP,),
    Plan.Kind.RESTART: (START, STOP),
    Plan.Kind.SWEEP: (SWEEP,),
}
MOST_DIGITS = 4


@require_POST
def plan_start(request, pk: int):
    deployment = deployment_to(request.user, pk, START)
    revision = deployment.revisions.first()
    if revision is None:
        raise Http404
    made = make_start_plan(
        deployment=deployment,
        revision=revision,
        allow_code_loading=request.user.has_perm("deployments.load_code", deployment),
        by=actor_of_request(request),
        now=timezone.now(),
    )
    return answer(request, deployment, made)


@require_POST
def plan_stop(request, pk: int):
    deployment = deployment_to(request.user, pk, STOP)
    made = make_stop_plan(
        deployment=deployment,
        launches=launches_asked_for(request, deployment),
        by=actor_of_request(request),
        now=timezone.now(),
    )
    return answer(request, deployment, made)


@require_POST
def plan_restart(request, pk: int):
    deployment = deployment_to(request.user, pk, START)
    require(request.user, STOP, deployment)
    revision = deployment.revisions.first()
    if revision is None:
        raise Http404
    made = make_restart_plan(
        deployment=deployment,
        revision=revision,
        launches=launches_asked_for(request, deployment),
        at_a_time=whole(request.POST.get("at_a_time", "")),
        allow_code_loading=request.user.has_perm("deployments.load_code", deployment),
        by=actor_of_request(request),
        now=timezone.now(),
    )
    return answer(request, deployment, made)


def launches_asked_for(request, deployment: Deployment) -> list[Launch] | None:
    """Those that were named; None where none was: all live ones are meant. An id that is none of them adds nothing."""
    asked = request.POST.getlist("launch")
    keys = [UUID(key) for key in asked if is_uuid(key)]
    chosen = deployment.launches.filter(pk__in=keys).select_related("host", "instance", "revision")
    return list(chosen) if asked else None


def whole(text: str) -> int:
    """A number from one on; one where it is none or absurd."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 1


@require_POST
def plan_sweep(request, pk: int):
    deployment = deployment_to(request.user, pk, SWEEP)
    made = make_sweep_plan(deployment=deployment, by=actor_of_request(request), now=timezone.now())
    return answer(request, deployment, made)


def answer(request, deployment: Deployment, made: Plan | Refused):
    """Return the plan's page; or every reason why there is none."""
    if isinstance(made, Refused):
        context = refused_page(deployment, made)
        return render(request, "deployments/refused.html", context, status=422)
    return redirect("deployments:plan-detail", pk=made.pk)


@require_safe
def plan_detail(request, pk: int):
    plan = plan_to(request.user, pk)
    context = plan_page(plan, request.user, now=timezone.now())
    return render(request, "deployments/plan.html", context | {"allowed": may_carry_out(request.user, plan)})


@require_POST
def plan_run(request, pk: int):
    plan = plan_for_action(request.user, pk)
    now = timezone.now()
    try:
        run = request_run(plan=plan, digest=request.POST.get("digest", ""), by=actor_of_request(request), now=now)
    except RunRefused as refused:
        context = plan_page(plan_to(request.user, pk), request.user, now=now)
        context |= {"allowed": True, "refusal": refused.problem}
        return render(request, "deployments/plan.html", context, status=422)
    return redirect("deployments:run-detail", pk=run.pk)


@require_POST
def plan_drop(request, pk: int):
    plan = plan_for_action(request.user, pk)
    drop_plan(plan=plan, by=actor_of_request(request), now=timezone.now())
    return redirect("deployments:detail", pk=plan.deployment_id)


def plan_for_action(user, pk: int) -> Plan:
    """Return the plan, for who may do what it does: start, stop, both or sweep."""
    plan = plan_to(user, pk)
    for right in RIGHTS[plan.kind]:
        require(user, right, plan)
    return plan


def may_carry_out(user, plan: Plan) -> bool:
    return all(user.has_perm(right, plan) for right in RIGHTS[plan.kind])
