"""Writing a deployment: a form and the same as YAML; buttons carry what was typed from one to the other."""

import yaml
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from accounts.access import requires_somewhere
from accounts.actors import actor_of_request
from deployments.access import deployment_to
from deployments.forms import form_values
from deployments.models import Deployment
from deployments.pages.editor import Draft, starting_draft
from deployments.planning.spec_yaml import spec_to_yaml
from deployments.services.revisions import NameTaken, add_revision, create_deployment

ADD = "deployments.add_deployment"
may_add = requires_somewhere(ADD)
form_methods = require_http_methods(["GET", "HEAD", "POST"])


@form_methods
def deployment_new(request):
    may_add(request.user)
    draft = starting_draft(request, deployment=None)
    if request.method != "POST":
        return show(request, draft)
    return take(request, draft, save=save_new)


@form_methods
def deployment_revise(request, pk: int):
    deployment = deployment_to(request.user, pk, "deployments.change_deployment")
    draft = starting_draft(request, deployment=deployment)
    if request.method != "POST":
        return show(request, draft)
    return take(request, draft, save=save_revision)


def show(request, draft: Draft, *, status: int = 200):
    return render(request, "deployments/edit.html", {"draft": draft}, status=status)


def take(request, draft: Draft, *, save):
    """Save, or carry what was typed over to the other tab; an invalid one stays where it is, with 422."""
    then = request.POST.get("then", "save")
    valid = draft.bound.is_valid()
    if then == "yaml" and draft.tab == "form":
        text = spec_to_yaml(draft.bound.spec) if valid else yaml.safe_dump(draft.bound.mapping, sort_keys=False)
        return show(request, draft.as_yaml(text))
    if not valid:
        return show(request, draft, status=422)
    if then == "form":
        return show(request, draft.as_form(form_values(draft.bound.spec)))
    saved = save(request, draft)
    return redirect("deployments:detail", pk=saved.pk) if saved else show(request, draft, status=422)


def save_new(request, draft: Draft) -> Deployment | None:
    environment = draft.environment_to_add(request)
    if environment is None:
        draft.bound.add_error(None, _("There is no such host in an environment where you may add deployments."))
        return None
    try:
        revision = create_deployment(
            environment=environment, spec=draft.bound.spec, by=actor_of_request(request), now=timezone.now()
        )
    except NameTaken:
        field = "name" if draft.tab == "form" else "text"
        draft.bound.add_error(field, _("A deployment of this name exists in this environment. Choose another name."))
        return None
    return revision.deployment


def save_revision(request, draft: Draft) -> Deployment:
    add_revision(deployment=draft.deployment, spec=draft.bound.spec, by=actor_of_request(request), now=timezone.now())
    return draft.deployment
