"""The state of the editor page: tab, host, what is filled in, and what the host's facts suggest."""

from dataclasses import dataclass, field, replace
from typing import Any

from accounts.access import environments_with
from accounts.models import Environment
from deployments.forms import SpecForm, YamlForm, form_values
from deployments.models import Deployment
from deployments.pages.deployments import SEE_VALUES
from deployments.planning.spec_yaml import spec_to_yaml
from deployments.services.revisions import spec_of
from hosts.access import hosts_for
from hosts.facts.model import FactsProblem, HostFacts
from hosts.facts.parse import parse_facts
from hosts.models import Host

ADD = "deployments.add_deployment"
BLANK = """\
name:
host: {host}
model:
served_model_name:
instances: 1
"""


@dataclass(frozen=True)
class Draft:
    """`bound` is the form that was sent or is to be filled in; `hosts` those that may be chosen."""

    tab: str
    bound: Any
    host: Host | None
    hosts: list[Host]
    deployment: Deployment | None = None
    facts: HostFacts | None = None
    options: dict[str, Any] = field(default_factory=dict)
    hides_env: bool = False

    def as_yaml(self, text: str) -> "Draft":
        return replace(self, tab="yaml", bound=YamlForm(initial={"text": text}))

    def as_form(self, values: dict) -> "Draft":
        named = next((host for host in self.hosts if host.name == self.bound.spec.host), self.host)
        options = self.options | {
            "host": named,
            "devices": named.devices.filter(present=True) if named else (),
        }
        return replace(self, tab="form", host=named, facts=facts_of(named), bound=SpecForm(initial=values, **options))

    def environment_to_add(self, request) -> Environment | None:
        """Return the environment of the host that the spec names, where this user may add deployments."""
        allowed = set(environments_with(request.user, ADD).values_list("pk", flat=True))
        wanted = self.bound.spec.host
        named = [host for host in self.hosts if host.name == wanted and host.environment_id in allowed]
        chosen = next((host for host in named if self.host and host.pk == self.host.pk), named[0] if named else None)
        return chosen.environment if chosen else None


def starting_draft(request, *, deployment: Deployment | None) -> Draft:
    """Return what the page begins with: from the request, else from the newest revision, else empty."""
    source = request.POST if request.method == "POST" else request.GET
    spec = spec_of(deployment.revisions.first()) if deployment else None
    hosts = choosable_hosts(request.user, deployment)
    host = chosen_host(hosts, source.get("host"), named=spec.host if spec else "")
    hidden = spec is not None and not request.user.has_perm(SEE_VALUES, deployment)
    tab = "yaml" if source.get("as") == "yaml" or host is None else "form"
    naming = {
        "fixed_name": deployment.name if deployment else "",
        "kept_env": dict(spec.env) if hidden else {},
    }
    options = naming | {"host": host, "devices": host.devices.filter(present=True) if host else ()}
    shown = replace(spec, env={}) if hidden else spec
    draft = Draft(tab, None, host, hosts, deployment, facts_of(host), options, hides_env=hidden)
    return replace(draft, bound=first_form(request, tab=tab, spec=shown, options=options, naming=naming))


def first_form(request, *, tab: str, spec, options: dict, naming: dict):
    data = request.POST if request.method == "POST" else None
    if tab == "form":
        return SpecForm(data, initial=form_values(spec) if spec else first_values(options["host"]), **options)
    host = options["host"]
    text = spec_to_yaml(spec) if spec else BLANK.format(host=host.name if host else "")
    return YamlForm(data, initial={"text": text}, **naming)


def first_values(host: Host) -> dict:
    """Return an empty form: ones, and the model where the host has only one."""
    values: dict[str, Any] = {"instances": 1, "tensor_parallel": 1, "pipeline_parallel": 1}
    facts = facts_of(host)
    if facts and len(facts.models) == 1:
        path = facts.models[0].path
        values |= {"model": path, "served_model_name": path.rstrip("/").rsplit("/", 1)[-1]}
    return values


def choosable_hosts(user, deployment: Deployment | None) -> list[Host]:
    hosts = hosts_for(user).filter(state=Host.State.ENROLLED)
    if deployment is not None:
        return list(hosts.filter(environment=deployment.environment))
    return list(hosts.filter(environment__in=environments_with(user, ADD)))


def chosen_host(hosts: list[Host], asked: str | None, *, named: str) -> Host | None:
    for host in hosts:
        if str(host.pk) == asked or (not asked and host.name == named):
            return host
    return hosts[0] if hosts else None


def facts_of(host: Host | None) -> HostFacts | None:
    stored = host.facts.first() if host else None
    facts = parse_facts(stored.body) if stored else None
    return None if isinstance(facts, FactsProblem) else facts
