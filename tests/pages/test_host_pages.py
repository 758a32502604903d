import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone

from audit.models import Entry
from hosts.connections import open_secret
from hosts.forms import HostForm
from hosts.models import Credential, Host
from tests import factories

pytestmark = pytest.mark.django_db

PASSWORD = {"name": "shared", "kind": "password", "password": "a-password"}


def text_of(answer, status: int = 200) -> str:
    assert answer.status_code == status
    return answer.content.decode()


def detail(host) -> str:
    return reverse("hosts:detail", args=[host.pk])


class TestHostList:
    def test_says_how_to_begin(self, page, environment):
        assert "Enrol the first" in text_of(page(reverse("hosts:list")))

    def test_shows_each_device_with_the_age_of_its_reading(self, page, host):
        text = text_of(page(reverse("hosts:list"), "viewer"))
        assert "2.0 / 140.4 GiB" in text
        assert 'datetime="2026-03-01T12:00:00Z"' in text


class TestHost:
    def test_shows_its_facts(self, page, host):
        text = text_of(page(detail(host), "viewer"))
        for fact in (
            "0.25.1",
            "/models/qwen2.5-0.5b-instruct",
            "942.32 MiB",
            "580.95.05",
            "3.03 TiB",
            "SHA256:7kTz",
        ):
            assert fact in text

    def test_shows_a_dash_for_what_was_not_observed(self, page, environment):
        host = factories.make_host(environment, facts=False)
        body = factories.facts_body(host, kernel=None, memory={}, session={})
        factories.HostFacts.objects.create(host=host, taken_at=factories.NOW, body=body)
        text = text_of(page(detail(host), "viewer"))
        assert "– available of –" in text.replace("\n", " ")  # noqa: RUF001

    def test_says_what_is_wrong_with_unreadable_facts(self, page, environment):
        host = factories.make_host(environment, facts=False)
        factories.HostFacts.objects.create(host=host, taken_at=factories.NOW, body={"hostname": "x"})
        assert "FACTS_INCOMPLETE" in text_of(page(detail(host), "viewer"))

    def test_shows_a_problem_with_its_numbers(self, page, environment):
        problem = {
            "code": "DISK_FULL",
            "message": "No space is left.",
            "next_step": "Free some space.",
            "numbers": {"wanted_bytes": 3 * factories.GIB},
        }
        host = factories.make_host(environment, problem=problem)
        text = text_of(page(detail(host), "viewer"))
        for part in ("No space is left.", "DISK_FULL", "Free some space.", "3.00 GiB"):
            assert part in text

    def test_shows_no_button_that_a_viewer_may_not_press(self, page, host):
        text = text_of(page(detail(host), "viewer"))
        for name in ("refresh", "edit", "delete"):
            assert reverse(f"hosts:{name}", args=[host.pk]) not in text

    def test_asks_for_the_fingerprint_to_be_compared(self, page, environment):
        host = factories.make_host(environment, state="key_shown", machine_id="", facts=False)
        assert reverse("hosts:confirm", args=[host.pk]) in text_of(page(detail(host), "administrator"))
        assert reverse("hosts:confirm", args=[host.pk]) not in text_of(page(detail(host), "operator"))

    def test_draws_samples_with_gaps_where_nothing_was_read(self, page, host):
        uuid = host.devices.first().uuid
        for used in (2 * factories.GIB, None):
            body = {"devices": [{"uuid": uuid, "used": used}]}
            factories.Host.objects.get(pk=host.pk).samples.create(at=timezone.now(), body=body)
        assert '"values": [2.0, null]' in text_of(page(detail(host), "viewer"))


class TestConfirm:
    def test_pins_the_fingerprint_that_was_shown(self, send, environment):
        host = factories.make_host(environment, state="key_shown", machine_id="", facts=False)
        answer = send(reverse("hosts:confirm", args=[host.pk]), {"fingerprint": host.host_key_fingerprint})
        assert answer["Location"] == detail(host)
        assert Host.objects.get(pk=host.pk).state == Host.State.CONFIRMED

    def test_refuses_another_fingerprint(self, send, environment):
        host = factories.make_host(environment, state="key_shown", machine_id="", facts=False)
        answer = send(reverse("hosts:confirm", args=[host.pk]), {"fingerprint": "SHA256:other"})
        assert "KEY_NOT_SHOWN" in text_of(answer, 422)
        assert Host.objects.get(pk=host.pk).state == Host.State.KEY_SHOWN


class TestEnrol:
    def values(self, where, **changes):
        credential = factories.make_credential(where)
        return {
            "environment": where.pk,
            "name": "gpu-12",
            "address": "10.1.2.3",
            "port": 22,
            "user": "vllm",
            "credential": credential.pk,
            "model_roots": "/models\n/data/models",
            "vllm_roots": "/opt/vllm",
        } | changes

    def test_writes_the_host_down_and_leads_to_it(self, send, environment):
        answer = send(reverse("hosts:new"), self.values(environment))
        host = Host.objects.get(name="gpu-12")
        assert answer["Location"] == detail(host)
        assert host.model_roots == ["/models", "/data/models"]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", ""),
            ("name", "-oProxyCommand=x"),
            ("address", "-oProxyCommand=x"),
            ("address", "host name"),
            ("address", "10.0.0.1;reboot"),
            ("port", "0"),
            ("port", "65536"),
            ("user", "a b"),
            ("user", "$(id)"),
            ("credential", "999"),
            ("environment", "999"),
            ("model_roots", "models"),
            ("vllm_roots", ""),
        ],
    )
    def test_refuses_a_wrong_field_beside_it(self, send, environment, field, value):
        answer = send(reverse("hosts:new"), self.values(environment, **{field: value}))
        assert answer.status_code == 422
        assert field in answer.context["form"].errors
        assert not Host.objects.filter(name="gpu-12").exists()

    def test_names_the_host_that_has_the_name(self, send, environment):
        factories.make_host(environment, "gpu-12")
        assert "NAME_TAKEN" in text_of(send(reverse("hosts:new"), self.values(environment)), 422)

    def test_refuses_the_credential_of_another_environment(self, send, environment):
        other = factories.make_credential(factories.make_environment("Elsewhere"))
        answer = send(reverse("hosts:new"), self.values(environment, credential=other.pk))
        assert answer.status_code == 422

    def test_asks_for_a_credential_first(self, page, environment):
        assert reverse("hosts:credential-new") in text_of(page(reverse("hosts:new")))


class TestEdit:
    def test_changes_paths_alone(self, send, host):
        values = {
            "model_roots": "/srv/models",
            "vllm_roots": "/opt/vllm",
            "name": "other",
            "address": "10.9.9.9",
        }
        send(reverse("hosts:edit", args=[host.pk]), values)
        changed = Host.objects.get(pk=host.pk)
        assert changed.model_roots == ["/srv/models"]
        assert (changed.name, changed.address) == (host.name, host.address)

    def test_is_filled_with_what_is_set(self, page, host):
        assert "/models" in text_of(page(reverse("hosts:edit", args=[host.pk])))


class TestDelete:
    def test_forgets_a_host_without_history(self, send, host):
        assert send(reverse("hosts:delete", args=[host.pk]))["Location"] == reverse("hosts:list")
        assert not Host.objects.filter(pk=host.pk).exists()

    def test_refuses_one_with_a_history(self, send, host, deployment):
        factories.make_launch(deployment, host, state="stopped")
        try:
            answer = send(reverse("hosts:delete", args=[host.pk]))
        finally:
            assert Host.objects.filter(pk=host.pk).exists()
        assert "HOST_IN_USE" in text_of(answer, 422)


class TestCredentials:
    def test_are_added_and_never_shown_again(self, send, page, environment):
        send(reverse("hosts:credential-new"), PASSWORD | {"environment": environment.pk})
        assert Credential.objects.get().name == "shared"
        assert b"a-password" not in bytes(Credential.objects.get().sealed)
        assert "a-password" not in text_of(page(reverse("hosts:credentials")))
        assert b"a-password" not in b"".join(bytes(entry.body) for entry in Entry.objects.all())

    def test_are_not_echoed_when_the_form_is_wrong(self, send, environment):
        values = PASSWORD | {"environment": environment.pk, "name": ""}
        assert "a-password" not in text_of(send(reverse("hosts:credential-new"), values), 422)

    def test_say_when_a_key_cannot_be_read(self, send, environment):
        values = {"environment": environment.pk, "name": "k", "kind": "key", "private_key": "no key"}
        assert "KEY_UNREADABLE" in text_of(send(reverse("hosts:credential-new"), values), 422)
        assert not Credential.objects.exists()

    def test_want_what_their_kind_needs(self, send, environment):
        values = {"environment": environment.pk, "name": "k", "kind": "key"}
        assert "private_key" in send(reverse("hosts:credential-new"), values).context["form"].errors

    def test_may_be_a_secret_for_instances_which_signs_in_nowhere(self, send, page, environment):
        values = {"environment": environment.pk, "name": "hub token", "kind": "secret", "value": "hf_abc"}
        send(reverse("hosts:credential-new"), values)
        kept = Credential.objects.get(name="hub token")
        assert open_secret(environment_id=environment.pk, name="hub token") == "hf_abc"
        assert kept not in HostForm(user=get_user_model().objects.get()).fields["credential"].queryset

    def test_have_a_name_once(self, send, environment):
        factories.make_credential(environment, "shared")
        assert "exists" in text_of(
            send(reverse("hosts:credential-new"), PASSWORD | {"environment": environment.pk}), 422
        )


class TestRefresh:
    def test_asks_the_worker_and_comes_back(self, send, host):
        wanted = reverse("deployments:list")
        answer = send(reverse("hosts:refresh", args=[host.pk]), {"next": wanted}, "operator")
        assert answer["Location"] == wanted
        assert Host.objects.get(pk=host.pk).asked_at is not None

    @pytest.mark.parametrize("wanted", ["", "https://example.com/", "//example.com", "javascript:alert(1)"])
    def test_leads_to_no_other_site(self, send, host, wanted):
        answer = send(reverse("hosts:refresh", args=[host.pk]), {"next": wanted}, "operator")
        assert answer["Location"] == detail(host)
