"""Every route of the URL configuration, tried by everybody. A route without a row fails, and vice versa."""

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from audit.models import Entry
from tests import factories, people

pytestmark = pytest.mark.django_db

VIEWERS = {"viewer", "operator", "administrator"}
OPERATORS = {"operator", "administrator"}
ADMINISTRATORS = {"administrator"}
EVERYBODY = {"anonymous", "stranger", "elsewhere", *VIEWERS}
SIGNED_IN = EVERYBODY - {"anonymous"}
# About an object, a stranger is told that it does not exist; about none, that the right is missing.
OBJECT, NONE = 404, 403

# name: (method, object, who may)
ROUTES = {
    "fleet": ("get", NONE, VIEWERS | {"elsewhere"}),
    "alive": ("get", NONE, EVERYBODY),
    "accounts:sign-in": ("get", NONE, EVERYBODY),
    "accounts:sign-out": ("post", NONE, SIGNED_IN),
    "hosts:list": ("get", NONE, VIEWERS | {"elsewhere"}),
    "hosts:new": ("get", NONE, ADMINISTRATORS | {"elsewhere"}),
    "hosts:credentials": ("get", NONE, ADMINISTRATORS | {"elsewhere"}),
    "hosts:credential-new": ("get", NONE, ADMINISTRATORS | {"elsewhere"}),
    "hosts:credential-delete": ("post", OBJECT, ADMINISTRATORS),
    "hosts:detail": ("get", OBJECT, VIEWERS),
    "hosts:confirm": ("post", OBJECT, ADMINISTRATORS),
    "hosts:try-again": ("post", OBJECT, ADMINISTRATORS),
    "hosts:refresh": ("post", OBJECT, OPERATORS),
    "hosts:edit": ("get", OBJECT, ADMINISTRATORS),
    "hosts:delete": ("post", OBJECT, ADMINISTRATORS),
    "deployments:list": ("get", NONE, VIEWERS | {"elsewhere"}),
    "deployments:new": ("get", NONE, OPERATORS | {"elsewhere"}),
    "deployments:detail": ("get", OBJECT, VIEWERS),
    "deployments:revise": ("get", OBJECT, OPERATORS),
    "deployments:archive": ("post", OBJECT, ADMINISTRATORS),
    "deployments:restore": ("post", OBJECT, ADMINISTRATORS),
    "deployments:plan": ("post", OBJECT, OPERATORS),
    "deployments:stop": ("post", OBJECT, OPERATORS),
    "deployments:restart": ("post", OBJECT, OPERATORS),
    "deployments:sweep": ("post", OBJECT, OPERATORS),
    "deployments:plan-detail": ("get", OBJECT, VIEWERS),
    "deployments:plan-run": ("post", OBJECT, OPERATORS),
    "deployments:plan-drop": ("post", OBJECT, OPERATORS),
    "deployments:run-detail": ("get", OBJECT, VIEWERS),
    "deployments:run-cancel": ("post", OBJECT, OPERATORS),
    "deployments:run-force": ("post", OBJECT, ADMINISTRATORS),
    "deployments:instance": ("get", OBJECT, VIEWERS),
    "deployments:instance-log": ("get", OBJECT, VIEWERS),
    "deployments:instance-lines": ("get", OBJECT, VIEWERS),
    "audit:list": ("get", NONE, ADMINISTRATORS | {"elsewhere"}),
    "audit:detail": ("get", OBJECT, ADMINISTRATORS),
}
# The trail is read by nobody below administrator, so whoever may not read it hears the same for every entry;
# credentials do not exist for those who may not see them.
SAME_ANSWER = {
    "audit:detail": {"stranger": 403, "viewer": 403, "operator": 403},
    "hosts:credential-delete": {"viewer": 404, "operator": 404},
}
# What is answered where the right is there: a page, the next page, or a refusal with its reasons.
ALLOWED = {200, 302, 422}
PEOPLE = ["anonymous", "stranger", "elsewhere", "viewer", "operator", "administrator"]


def names(patterns, prefix: str = ""):
    """The full names of all routes; one without a name is shown by its pattern, and then has no row."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = f"{prefix}{pattern.namespace}:" if pattern.namespace else prefix
            yield from names(pattern.url_patterns, inner)
        elif isinstance(pattern, URLPattern):
            yield f"{prefix}{pattern.name or pattern.pattern}"


@pytest.fixture
def world():
    """One of everything, in an environment where the people have their roles."""
    environment = factories.make_environment("Shop")
    host = factories.make_host(environment)
    deployment = factories.make_deployment(host)
    plan = factories.make_plan(deployment, host)
    taken = factories.make_plan(deployment, host, launches=0)
    launch = factories.make_launch(deployment, host, plan=taken, state="ready", slot=1)
    return {
        "environment": environment,
        "host": host.pk,
        "credential": host.credential_id,
        "deployment": deployment.pk,
        "plan": plan.pk,
        "run": factories.make_run(taken, state="succeeded").pk,
        "launch": launch.pk,
    }


def address(name: str, world: dict) -> str:
    if name == "audit:detail":
        entry = Entry.objects.filter(environment_id=world["environment"].pk).first()
        return reverse(name, args=[entry.sequence])
    if name == "hosts:credential-delete":
        return reverse(name, args=[world["credential"]])
    kinds = {"plan-": "plan", "run-": "run", "instance": "launch"}
    for prefix, kind in kinds.items():
        if name.startswith(f"deployments:{prefix}"):
            return reverse(name, args=[world[kind]])
    if ROUTES[name][1] == OBJECT:
        return reverse(name, args=[world["host" if name.startswith("hosts:") else "deployment"]])
    return reverse(name)


def sign_in(client, who: str, world: dict) -> None:
    if who == "anonymous":
        return
    if who == "stranger":
        user = people.stranger()
    elif who == "elsewhere":
        user = people.administrator(factories.make_environment("Elsewhere"))
    else:
        user = people.person(who, role=who, environment=world["environment"])
    client.force_login(user)


def expected(name: str, who: str) -> set[int]:
    _method, kind, may = ROUTES[name]
    if who in may:
        return ALLOWED
    if who in SAME_ANSWER.get(name, {}):
        return {SAME_ANSWER[name][who]}
    if who == "anonymous":
        return {302}
    return {kind if who in ("stranger", "elsewhere") else 403}


class TestTheTable:
    def test_names_every_route_and_no_other(self):
        assert sorted(ROUTES) == sorted(names(get_resolver().url_patterns))


class TestEveryRoute:
    @pytest.mark.parametrize("who", PEOPLE)
    @pytest.mark.parametrize("name", ROUTES)
    def test_answers_as_the_table_says(self, client, world, name, who):
        sign_in(client, who, world)
        method = ROUTES[name][0]
        data = {"digest": "none", "fingerprint": "none"} if method == "post" else None
        response = getattr(client, method)(address(name, world), data)
        assert response.status_code in expected(name, who), response.content[:2000]
        if who == "anonymous" and who not in ROUTES[name][2]:
            assert response["Location"].startswith(reverse("accounts:sign-in"))

    @pytest.mark.parametrize("name", [name for name, row in ROUTES.items() if row[0] == "post"])
    def test_that_changes_something_refuses_get(self, client, world, name):
        sign_in(client, "administrator", world)
        assert client.get(address(name, world)).status_code == 405

    @pytest.mark.parametrize("name", [name for name, row in ROUTES.items() if row[0] == "post"])
    def test_that_changes_something_wants_a_token(self, world, name):
        client = Client(enforce_csrf_checks=True)
        sign_in(client, "administrator", world)
        assert client.post(address(name, world)).status_code == 403
