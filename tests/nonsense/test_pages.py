"""Absurd and hostile requests on every route: an answer that is one, nothing written, nothing executed in a page."""

import pytest
from django.urls import reverse

from audit.models import Entry
from deployments.models import Deployment, Run
from hosts.models import Credential, Host
from tests import people
from tests.permissions.test_matrix import ROUTES, address, world  # noqa: F401

pytestmark = pytest.mark.django_db
GET = [name for name, row in ROUTES.items() if row[0] == "get"]
POST = [name for name, row in ROUTES.items() if row[0] == "post"]
QUERIES = [
    "page=-1&from=-1&limit=-1",
    "page=1e9&from=1e9&limit=nan",
    f"page={10**40}&from={10**40}&limit={10**40}",
    "page=%00&from=%00&limit=%00&q=%00&action=%00&next=%00",
    "page=%ff%fe&q=%ff%fe&action=%ff&from=%ff",
    "q=" + "x" * 5000,
    "page=1&page=2&from[]=1&q=%27%3B--",
    "next=//evil.example/&next=javascript:alert(1)",
    "from=%E2%80%AE%D9%A3",  # right-to-left override, and a digit that is not ASCII
    "=&&&;",
]
TEXTS = {
    "NUL": "a\x00b",
    "a megabyte": "x" * (1 << 20),
    "markup": "<script>alert(1)</script>",
    "quotes": "'\"><img src=x onerror=alert(1)>",
    "template": "{{ 7|add:7 }}{% now 'Y' %}",
    "emoji": "🦙" * 40,
    "right to left": "\u202egnp.exe",
    "negative": "-1",
    "huge": str(10**40),
    "float": "1e309",
    "path": "/../../../etc/passwd\n/proc/self/environ",
    "spaces": "   \t\r\n ",
}
FIELDS = [
    "digest", "fingerprint", "next", "name", "address", "port", "user", "credential", "environment", "kind", "secret",
    "private_key", "passphrase", "password", "model", "served_model_name", "instances", "max_model_len", "devices",
    "extra_args", "env", "secrets", "yaml", "mode", "model_roots", "vllm_roots", "state_root", "username",
]  # fmt: skip


@pytest.fixture
def signed_in(client, world):  # noqa: F811
    client.force_login(people.administrator(world["environment"]))
    client.raise_request_exception = True
    return client


def counts() -> list[int]:
    return [model.objects.count() for model in (Host, Credential, Deployment, Run)]


class TestQueries:
    @pytest.mark.parametrize("query", QUERIES)
    @pytest.mark.parametrize("name", GET)
    def test_get_an_answer(self, signed_in, world, name, query):  # noqa: F811
        assert signed_in.get(f"{address(name, world)}?{query}").status_code < 500


class TestPaths:
    @pytest.mark.parametrize("key", [0, 2**31, 2**63, 10**30])
    @pytest.mark.parametrize("name", [name for name in ROUTES if ROUTES[name][1] == 404])
    def test_of_nothing_are_not_found(self, signed_in, name, key):
        argument = f"00000000-0000-4000-8000-{key % 10**12:012d}" if name.startswith("deployments:instance") else key
        response = getattr(signed_in, ROUTES[name][0])(reverse(name, args=[argument]))
        assert response.status_code == 404

    @pytest.mark.parametrize("path", ["/hosts/-1/", "/hosts/1.5/", "/deployments/%00/", "/%ff/", "/..%2f..%2fetc"])
    def test_of_no_shape_are_not_found(self, signed_in, path):
        assert signed_in.get(path).status_code in (301, 404)


class TestForms:
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    @pytest.mark.parametrize("name", sorted({*POST, "hosts:new", "hosts:credential-new", "hosts:edit",
                                             "deployments:new", "deployments:revise", "accounts:sign-in"}
                                            - {"accounts:sign-out", "hosts:delete"}))  # fmt: skip
    def test_full_of_nonsense_are_refused_in_words(self, signed_in, world, name, text):  # noqa: F811
        before = counts()
        response = signed_in.post(address(name, world), dict.fromkeys(FIELDS, text))
        assert response.status_code < 500
        content = response.content.decode()
        assert "<script>alert" not in content
        assert "<img src=x" not in content
        assert "Traceback" not in content
        assert counts() == before
        assert not Entry.objects.filter(action__in=["run.request", "host.propose", "credential.add"]).exists()

    @pytest.mark.parametrize("name", ["hosts:new", "hosts:credential-new", "deployments:new", "accounts:sign-in"])
    def test_with_half_a_character_are_refused(self, signed_in, world, name):  # noqa: F811
        before = counts()
        body = "&".join(f"{field}=%ED%A0%80%C3" for field in FIELDS)
        answer = signed_in.generic("POST", address(name, world), body, content_type="application/x-www-form-urlencoded")
        assert answer.status_code < 500
        assert counts() == before

    @pytest.mark.parametrize("name", ["hosts:new", "hosts:credential-new", "deployments:new"])
    def test_left_empty_or_doubled_are_refused(self, signed_in, world, name):  # noqa: F811
        before = counts()
        assert signed_in.post(address(name, world), {}).status_code == 422
        doubled = {field: ["a", "b"] for field in FIELDS}
        assert signed_in.post(address(name, world), doubled).status_code < 500
        assert counts() == before

    @pytest.mark.parametrize("body", [b"", b"\x00" * 100, b"{", b"a=%", b"--x\r\n\r\n"])
    @pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain", ""])
    def test_of_another_kind_than_a_form_are_refused(self, signed_in, world, body, kind):  # noqa: F811
        response = signed_in.generic("POST", address("deployments:new", world), body, content_type=kind)
        assert response.status_code in (400, 415, 422)


class TestNamesOnPages:
    NAME = "<b onmouseover=alert(1)>\"'&lt;x"

    @pytest.mark.parametrize("name", [name for name in GET if name not in ("alive", "accounts:sign-in")])
    def test_are_text_wherever_they_come_from(self, signed_in, world, name):  # noqa: F811
        """Names are checked where they are typed; hosts, models and logs say what they like."""
        problem = dict.fromkeys(("code", "message", "next_step", "detail"), self.NAME) | {"numbers": {"a": self.NAME}}
        Host.objects.filter(pk=world["host"]).update(name=self.NAME, problem=problem)
        Deployment.objects.filter(pk=world["deployment"]).update(name=self.NAME)
        response = signed_in.get(address(name, world))
        assert response.status_code == 200
        if response["Content-Type"].startswith("text/html"):
            assert "<b onmouseover" not in response.content.decode()
