import pytest
from django.contrib.auth import get_user_model

from tests import factories, people


@pytest.fixture
def environment(db):
    return factories.make_environment("Shop")


@pytest.fixture
def host(environment):
    return factories.make_host(environment, "gpu-07", gpus=2)


@pytest.fixture
def deployment(host):
    return factories.make_deployment(host, "qwen-chat")


@pytest.fixture
def page(client, environment):
    """`page(path, role)` → the answer; the person has the role in the environment of the test."""

    def get(path: str, role: str = "administrator", **extra):
        client.force_login(known_person(role, environment))
        return client.get(path, **extra)

    return get


@pytest.fixture
def send(client, environment):
    """`send(path, data, role)` → the answer to a form."""

    def post(path: str, data: dict | None = None, role: str = "administrator"):
        client.force_login(known_person(role, environment))
        return client.post(path, data or {})

    return post


def known_person(role: str, environment):
    found = get_user_model().objects.filter(username=role).first()
    return found or people.person(role, role=role if role != "stranger" else None, environment=environment)
