"""Enrolling machines: what works, and every way it can be refused, with a sentence each."""

import socket

import pytest
from django.utils import timezone

from hosts import services
from hosts.models import Credential, Host
from tests.fleet.conftest import ANN

pytestmark = pytest.mark.django_db(transaction=True)


class TestEnrolment:
    def test_shows_the_fingerprint_before_anything_is_trusted(self, propose, fleet):
        host = propose("gpu-a")
        shown = {item["name"]: item["host_key"] for item in fleet.describe()}["gpu-a"]
        assert [host.host_key_kind, host.host_key] == shown.split()[:2]
        assert host.host_key_fingerprint.startswith("SHA256:")
        assert host.machine_id == ""

    def test_reads_identity_devices_and_models_once_the_key_is_confirmed(self, enrol):
        host = enrol("gpu-a")
        assert host.state == Host.State.ENROLLED, host.problem
        assert host.machine_id
        assert [device.kind for device in host.devices.all()] == ["gpu", "gpu"]
        assert any("Qwen3-0.6B" in model["path"] for model in host.facts.latest().body["models"])

    def test_gives_a_host_without_a_gpu_one_cpu_device(self, enrol):
        host = enrol("cpu-box")
        (device,) = host.devices.all()
        assert (device.uuid, device.kind) == ("cpu", "cpu")

    def test_confirms_only_the_fingerprint_that_was_shown(self, propose):
        host = propose("gpu-a")
        with pytest.raises(services.Refused) as refusal:
            services.confirm_key(host=host, fingerprint="SHA256:other", by=ANN, now=timezone.now())
        assert refusal.value.problem["code"] == "KEY_NOT_SHOWN"


class TestRefusals:
    def test_names_the_first_enrolment_of_the_same_machine(self, enrol):
        enrol("gpu-a")
        again = enrol("gpu-a-again", machine="gpu-a")
        assert again.state == Host.State.REFUSED
        assert again.problem["code"] == "MACHINE_ENROLLED_ALREADY"
        assert "gpu-a" in again.problem["message"]

    def test_names_a_host_without_python(self, enrol):
        host = enrol("no-python")
        assert (host.state, host.problem["code"]) == (Host.State.REFUSED, "NO_PYTHON")

    def test_names_a_closed_port(self, propose):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        host = propose("nobody", machine="gpu-a", address="127.0.0.1", port=port)
        assert (host.state, host.problem["code"]) == (Host.State.REFUSED, "PORT_CLOSED")

    def test_names_a_silent_port(self, propose, settings):
        settings.SSH_CONNECT_TIMEOUT_SECONDS = 1
        with socket.create_server(("127.0.0.1", 0)) as server:
            host = propose("silent", machine="gpu-a", address="127.0.0.1", port=server.getsockname()[1])
        assert (host.state, host.problem["code"]) == (Host.State.REFUSED, "PORT_SILENT")

    def test_names_a_key_the_host_does_not_accept(self, propose, environment, fleet):
        import asyncssh

        other = services.add_key(
            environment=environment,
            name="other",
            private_key=asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode(),
            passphrase="",
            by=ANN,
            now=timezone.now(),
        )
        host = propose("gpu-a", credential=other)
        services.confirm_key(host=host, fingerprint=host.host_key_fingerprint, by=ANN, now=timezone.now())
        host.refresh_from_db()
        assert (host.state, host.problem["code"]) == (Host.State.REFUSED, "WRONG_KEY")

    def test_stops_hard_at_a_changed_host_key(self, enrol):
        from hosts.connections import connections

        host = enrol("gpu-a")
        connections.close_all()
        import asyncssh

        key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()
        Host.objects.filter(pk=host.pk).update(host_key=key[1])
        services.ask_for_facts(host=host, by=ANN, now=timezone.now())
        host.refresh_from_db()
        assert host.problem["code"] == "HOST_KEY_CHANGED"
        assert host.state == Host.State.ENROLLED

    def test_refuses_a_text_that_is_no_key(self, environment):
        from hosts.ssh.errors import AuthRefused

        with pytest.raises(AuthRefused) as refusal:
            services.add_key(
                environment=environment, name="x", private_key="nonsense", passphrase="", by=ANN, now=timezone.now()
            )
        assert refusal.value.code == "KEY_UNREADABLE"

    def test_every_problem_says_what_to_do(self, enrol):
        host = enrol("no-python")
        assert host.problem["message"].endswith(".")
        assert host.problem["next_step"].endswith(".")


class TestVault:
    def test_opens_nothing_without_the_private_key(self, credential, settings):
        from hosts.connections import open_credential
        from hosts.vault import VaultClosed

        settings.VAULT_PRIVATE_KEY = ""
        with pytest.raises(VaultClosed):
            open_credential(credential)

    def test_does_not_open_a_value_moved_to_another_row(self, credential, environment):
        from hosts.connections import open_credential
        from hosts.vault import VaultClosed

        other = services.add_password(environment=environment, name="pw", password="s3cr3t", by=ANN, now=timezone.now())
        Credential.objects.filter(pk=credential.pk).update(sealed=other.sealed)
        credential.refresh_from_db()
        with pytest.raises(VaultClosed):
            open_credential(credential)
