from django.contrib import messages
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts.access import requires_somewhere
from accounts.actors import actor_of_request
from accounts.pages import render_live
from audit.canonical import clean_text
from hosts import services
from hosts.access import credential_to_delete, credentials_for, host_to, host_to_change, host_to_see
from hosts.forms import CredentialForm, HostForm, PathsForm
from hosts.models import Credential, Host
from hosts.pages import host_cards, host_page
from hosts.problems import problem_of
from hosts.ssh.errors import SshError
from hosts.vault import VaultClosed

may_see_hosts = requires_somewhere("hosts.view_host")
may_enrol = requires_somewhere("hosts.add_host")
may_see_credentials = requires_somewhere("hosts.view_credential")
may_add_credential = requires_somewhere("hosts.add_credential")
form_methods = require_http_methods(["GET", "HEAD", "POST"])


@require_safe
def host_list(request):
    may_see_hosts(request.user)
    context = {"cards": host_cards(request.user)}
    return render_live(request, page="hosts/list.html", fragment="hosts/_list.html", context=context)


@form_methods
def host_new(request):
    may_enrol(request.user)
    form = HostForm(request.POST or None, user=request.user)
    context = {"form": form, "has_credential": form.fields["credential"].queryset.exists()}
    if request.method != "POST":
        return render(request, "hosts/new.html", context)
    if form.is_valid():
        try:
            host = services.propose_host(**form.cleaned_data, by=actor_of_request(request), now=timezone.now())
        except services.Refused as refused:
            context["problem"] = refused.problem
        else:
            return redirect("hosts:detail", pk=host.pk)
    return render(request, "hosts/new.html", context, status=422)


@require_safe
def host_detail(request, pk: int):
    host = host_to_see(request.user, pk)
    context = host_page(host, now=timezone.now())
    return render_live(request, page="hosts/detail.html", fragment="hosts/_detail.html", context=context)


@require_POST
def host_confirm(request, pk: int):
    host = host_to(request.user, pk, "hosts.add_host")
    fingerprint = clean_text(request.POST.get("fingerprint", ""))
    try:
        services.confirm_key(host=host, fingerprint=fingerprint, by=actor_of_request(request), now=timezone.now())
    except services.Refused as refused:
        return refuse(request, host, refused.problem)
    return redirect("hosts:detail", pk=pk)


@require_POST
def host_try_again(request, pk: int):
    host = host_to(request.user, pk, "hosts.add_host")
    services.try_again(host=host, by=actor_of_request(request), now=timezone.now())
    return redirect("hosts:detail", pk=pk)


@require_POST
def host_refresh(request, pk: int):
    host = host_to(request.user, pk, "hosts.refresh_host")
    services.ask_for_facts(host=host, by=actor_of_request(request), now=timezone.now())
    wanted = request.POST.get("next", "")
    # Without the slash, redirect() would take the text for the name of a view.
    if wanted.startswith("/") and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return redirect(wanted)
    return redirect("hosts:detail", pk=pk)


@form_methods
def host_edit(request, pk: int):
    host = host_to_change(request.user, pk)
    form = PathsForm(request.POST or None, initial={name: getattr(host, name) for name in services.EDITABLE})
    if request.method != "POST":
        return render(request, "hosts/edit.html", {"form": form, "host": host})
    if not form.is_valid():
        return render(request, "hosts/edit.html", {"form": form, "host": host}, status=422)
    services.change_host(host=host, changes=form.cleaned_data, by=actor_of_request(request))
    messages.info(request, _("Saved. Press Refresh to look below the new directories."))
    return redirect("hosts:detail", pk=pk)


@require_POST
def host_delete(request, pk: int):
    host = host_to(request.user, pk, "hosts.delete_host")
    try:
        services.delete_host(host=host, by=actor_of_request(request))
    except services.Refused as refused:
        return refuse(request, host, refused.problem)
    messages.info(request, _("%(name)s is no longer enrolled.") % {"name": host.name})
    return redirect("hosts:list")


@require_safe
def credential_list(request):
    may_see_credentials(request.user)
    return render(request, "hosts/credentials.html", {"credentials": credentials_for(request.user)})


@form_methods
def credential_new(request):
    may_add_credential(request.user)
    form = CredentialForm(request.POST or None, user=request.user)
    if request.method != "POST":
        return render(request, "hosts/credential_new.html", {"form": form})
    problem = None
    if form.is_valid():
        try:
            add_credential(request, form.cleaned_data)
        except (SshError, VaultClosed) as error:
            problem = problem_of(error) if isinstance(error, SshError) else vault_problem()
        else:
            return redirect("hosts:credentials")
    return render(request, "hosts/credential_new.html", {"form": form, "problem": problem}, status=422)


@require_POST
def credential_delete(request, pk: int):
    credential = credential_to_delete(request.user, pk)
    try:
        services.delete_credential(credential=credential, by=actor_of_request(request))
    except services.Refused as refused:
        context = {"credentials": credentials_for(request.user), "refusal": refused.problem}
        return render(request, "hosts/credentials.html", context, status=422)
    messages.info(request, _("%(name)s is deleted.") % {"name": credential.name})
    return redirect("hosts:credentials")


def add_credential(request, values: dict) -> Credential:
    shared = {"environment": values["environment"], "name": values["name"]}
    shared |= {"by": actor_of_request(request), "now": timezone.now()}
    if values["kind"] == Credential.Kind.PASSWORD:
        return services.add_password(password=values["password"], **shared)
    if values["kind"] == Credential.Kind.SECRET:
        secret = {"value": values["value"]}
        return services.add_credential(kind=Credential.Kind.SECRET, secret=secret, fingerprint="", **shared)
    key = values["private_key"].replace("\r\n", "\n").strip() + "\n"
    return services.add_key(private_key=key, passphrase=values["passphrase"], **shared)


def vault_problem() -> dict:
    return {
        "code": "VAULT_CLOSED",
        "message": _("This installation has no key to seal credentials with."),
        "next_step": _("Set FLEETADMIN_VAULT_PUBLIC_KEY; `python manage.py vault_keys` makes a pair."),
    }


def refuse(request, host: Host, problem: dict):
    context = host_page(host, now=timezone.now()) | {"refusal": problem}
    return render(request, "hosts/detail.html", context, status=422)
