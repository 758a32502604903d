"""Hosts that cannot be used: refused at the enrolment or at the plan, on the page and in the command alike."""

import socket
import threading

import pytest
from django.urls import reverse
from django.utils import timezone

from deployments.services.runs import request_run
from hosts import services
from hosts.connections import connections
from hosts.models import Host
from tests.bad_input.conftest import is_clear
from tests.fleet.conftest import ANN
from tests.fleet.test_start_and_stop import plan_start

pytestmark = pytest.mark.django_db(transaction=True)

AT_ENROLMENT = [
    ("nfs", "STATE_ROOT_NOT_LOCAL"),
    ("old", "PYTHON_TOO_OLD"),
    ("none", "NO_PYTHON"),
]


class TestEnrolment:
    @pytest.mark.parametrize(("name", "code"), AT_ENROLMENT)
    def test_is_refused_by_the_command_with_exit_code_two(
        self, name, code, credential, fleet, fleet_command, nothing_half_started
    ):
        described = {item["name"]: item for item in fleet.describe()}[name]
        exit_code, body = fleet_command(
            "enrol", name, "--address", described["address"], "--port", str(described["port"]),
            "--user", described["user"], "--credential", "fleet-key", "--trust",
        )  # fmt: skip
        assert exit_code == 2, body
        is_clear(body["refused"][0], code)
        nothing_half_started(name)

    @pytest.mark.parametrize(("name", "code"), AT_ENROLMENT)
    def test_says_on_the_host_page_why_and_what_to_do(self, name, code, enrol, signed_in):
        host = enrol(name)
        assert host.state == Host.State.REFUSED
        text = signed_in.get(reverse("hosts:detail", args=[host.pk])).content.decode()
        assert code in text
        is_clear(host.problem, code)

    def test_leaves_no_file_where_no_python_is(self, enrol, fleet):
        enrol("none")
        assert not list(fleet["none"].layout.home.glob(".fleetadmin"))

    def test_names_the_first_of_two_machines_with_one_identity(self, enrol):
        enrol("clone")
        second = enrol("clone-of-it")
        is_clear(second.problem, "MACHINE_ENROLLED_ALREADY")
        assert "clone (" in second.problem["message"]

    def test_names_a_wrong_password(self, propose, environment):
        wrong = services.add_password(environment=environment, name="pw", password="n0t-it", by=ANN, now=timezone.now())
        host = propose("gpu-a", credential=wrong)
        services.confirm_key(host=host, fingerprint=host.host_key_fingerprint, by=ANN, now=timezone.now())
        host.refresh_from_db()
        assert host.state == Host.State.REFUSED
        is_clear(host.problem, "WRONG_PASSWORD")
        assert "n0t-it" not in str(host.problem)

    def test_names_a_server_that_does_not_speak_ssh(self, propose, web_server):
        host = propose("odd", machine="gpu-a", address="127.0.0.1", port=web_server)
        assert host.state == Host.State.REFUSED
        is_clear(host.problem, "NOT_SSH")

    def test_names_an_unknown_name(self, propose):
        host = propose("odd", machine="gpu-a", address="no-such-host.invalid")
        assert host.state == Host.State.REFUSED
        is_clear(host.problem, "NAME_UNKNOWN")


class TestChangedHostKey:
    def test_ends_the_start_before_a_word_is_said(self, enrol, fleet, nothing_half_started):
        host = enrol("gpu-a")
        plan = plan_start(host)
        connections.close_all()
        other = fleet["full"].host_key_line.split()[1]
        Host.objects.filter(pk=host.pk).update(host_key=other)
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert run.state == "failed"
        is_clear(run.problem, "HOST_KEY_CHANGED")
        nothing_half_started("gpu-a")


@pytest.fixture
def web_server():
    """The port of something that answers in HTTP, once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
            peer.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)
