"""A secret is typed, used for a real start, and looked for afterwards everywhere but in its sealed box."""

import base64
import http.client
import logging
import urllib.parse
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from deployments.models import Launch, Plan
from deployments.services.runs import request_run
from hosts.connections import connections
from hosts.models import Credential, Host
from tests import people
from tests.fleet.conftest import ANN, _tasks, credential, enrol, environment, fleet, propose  # noqa: F401
from tests.fleet.test_start_and_stop import plan_start
from tests.streams import body_of

pytestmark = pytest.mark.django_db(transaction=True)
API_KEY = "canary-apikey-7f3d/9+Q=="
PASSPHRASE = "canary passphrase 5e1b"


def spellings(secret: str) -> list[str]:
    raw = secret.encode()
    return [secret, urllib.parse.quote(secret), base64.b64encode(raw).decode().rstrip("="), raw.hex(), secret[:12]]


def find(text: str) -> list[str]:
    return [spelling for secret in (API_KEY, PASSPHRASE) for spelling in spellings(secret) if spelling in text]


@pytest.fixture
def signed_in(client, environment):  # noqa: F811
    client.force_login(people.administrator())
    return client


@pytest.fixture
def add_secret(signed_in, environment):  # noqa: F811
    """Through the form, as a person does."""

    def add(kind: str, name: str, **fields) -> Credential:
        answer = signed_in.post(
            reverse("hosts:credential-new"), {"environment": environment.pk, "kind": kind, "name": name, **fields}
        )
        assert answer.status_code == 302, answer.content.decode()[-3000:]
        assert not find(answer.content.decode())
        return Credential.objects.get(name=name)

    return add


@pytest.fixture
def started(enrol, add_secret, caplog):  # noqa: F811
    """An instance that serves with the key."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("paramiko").setLevel(logging.DEBUG)
    host = enrol("gpu-a")
    add_secret("secret", "api key", value=API_KEY)
    plan = plan_start(host, secrets={"VLLM_API_KEY": "api key"})
    assert isinstance(plan, Plan), plan
    run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
    run.refresh_from_db()
    assert run.state == "succeeded", run.problem
    yield run
    logging.getLogger("paramiko").setLevel(logging.WARNING)
    connections.close_all()


def rows() -> str:
    """Every value of every table, as text; sealed boxes left out."""
    found = []
    for model in apps.get_models():
        for row in model.objects.all():
            for field in model._meta.concrete_fields:
                if (model, field.name) == (Credential, "sealed"):
                    continue
                value = getattr(row, field.attname)
                found.append(
                    bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | memoryview) else str(value)
                )
    return "\n".join(found)


class TestSecret:
    def test_of_an_instance_is_used_and_stands_nowhere(self, started, signed_in, caplog, capsys, fleet):  # noqa: F811
        launch = Launch.objects.get(plan=started.plan)
        pages = [
            reverse("fleet"),
            reverse("hosts:credentials"),
            reverse("hosts:detail", args=[launch.host_id]),
            reverse("deployments:detail", args=[launch.deployment_id]),
            reverse("deployments:revise", args=[launch.deployment_id]),
            reverse("deployments:plan-detail", args=[started.plan_id]),
            reverse("deployments:run-detail", args=[started.pk]),
            reverse("deployments:instance", args=[launch.pk]),
            reverse("deployments:instance-log", args=[launch.pk]),
            reverse("audit:list"),
        ]
        for page in pages:
            answer = signed_in.get(page)
            assert answer.status_code == 200
            assert not find(body_of(answer).decode()), page
        for verb in (["hosts"], ["status"], ["logs", launch.instance.name]):
            with pytest.raises(SystemExit):
                call_command("fleet", *verb, "--json")
        assert not find(capsys.readouterr().out)
        assert not find(rows())
        assert not find(caplog.text)
        assert not find("\n".join(process.title for process in fleet["gpu-a"].machine))

    @pytest.mark.parametrize(("key", "status"), [(API_KEY, 200), ("another", 401)])
    def test_reaches_the_instance(self, started, fleet, key, status):  # noqa: F811
        """The test above would pass too if the key were lost on the way."""
        launch = Launch.objects.get(plan=started.plan)
        connection = http.client.HTTPConnection(fleet["gpu-a"].address, launch.port, timeout=5)
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert connection.getresponse().status == status
        connection.close()

    def test_stands_in_no_file_that_others_may_read(self, started, fleet):  # noqa: F811
        for path in Path(fleet["gpu-a"].layout.home).rglob("*"):
            if path.is_file() and find(path.read_bytes().decode("utf-8", "replace")):
                assert path.stat().st_mode & 0o077 == 0, path


class TestKey:
    def test_and_its_passphrase_stand_nowhere(self, signed_in, add_secret, caplog, tmp_path):
        caplog.set_level(logging.DEBUG)
        text = make_key(tmp_path)
        add_secret("key", "locked", private_key=text, passphrase=PASSPHRASE)
        body = "".join(text.splitlines()[1:-1])
        for text in (signed_in.get(reverse("hosts:credentials")).content.decode(), rows(), caplog.text):
            assert not find(text)
            assert body[20:80] not in text

    def test_that_does_not_open_is_not_shown_again(self, signed_in, environment, tmp_path):  # noqa: F811
        text = make_key(tmp_path)
        answer = signed_in.post(
            reverse("hosts:credential-new"),
            {"environment": environment.pk, "kind": "key", "name": "k", "private_key": text, "passphrase": API_KEY},
        )
        assert answer.status_code == 422
        assert not find(answer.content.decode())
        assert not Credential.objects.filter(name="k").exists()
        assert not Host.objects.exists()


def make_key(directory: Path) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.BestAvailableEncryption(PASSPHRASE.encode()),
    )
    return key.decode()
