"""Each way a connection can fail is one code, with a sentence and a next step."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, PasswordAuth
from hosts.ssh.errors import (
    AuthRefused,
    HostKeyChanged,
    HostKeyUnknown,
    SshError,
    TooManyConnections,
    Unreachable,
)
from hosts.ssh.paramiko_runner import connect, read_host_key
from hosts.ssh.wire import judge_name_error
from tests.ssh.conftest import QUICK, Server, host_key_of, make_key

SOME_KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIEq1fVjPpyAvKZ2UAgRTuMdsSNNkC1JyGnnQXW3GbR4e")


def endpoint_at(port: int, address: str = "127.0.0.1") -> Endpoint:
    key = make_key().export_private_key("openssh").decode()
    return Endpoint(address=address, port=port, user="fleet", host_key=SOME_KEY, auth=KeyAuth(key))


def fail(endpoint: Endpoint, limits=QUICK) -> SshError:
    with pytest.raises(SshError) as caught:
        connect(endpoint, limits=limits)
    error = caught.value
    assert error.message.endswith((".", ")"))
    assert error.next_step.endswith(".")
    assert "{" not in error.message + error.next_step
    return error


class TestUnreachable:
    def test_names_a_closed_port(self):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            error = fail(endpoint_at(sock.getsockname()[1]))
        assert (type(error), error.code, error.transient) == (Unreachable, "PORT_CLOSED", True)

    def test_names_a_silent_port_after_the_banner_time(self, raw_port):
        started = time.monotonic()
        error = fail(endpoint_at(raw_port(lambda peer: None)))
        assert error.code == "PORT_SILENT"
        assert 0.9 < time.monotonic() - started < 3

    def test_names_an_unknown_name(self):
        error = fail(endpoint_at(22, address="no-such-host.invalid"))
        # Where no name server answers, nobody can say that the name is unknown.
        assert (error.code, error.transient) in {("NAME_UNKNOWN", False), ("NAME_SERVICE_SILENT", True)}

    @pytest.mark.parametrize(
        ("number", "code"),
        [
            (socket.EAI_NONAME, "NAME_UNKNOWN"),
            (socket.EAI_FAIL, "NAME_UNKNOWN"),
            (None, "NAME_UNKNOWN"),
            (socket.EAI_AGAIN, "NAME_SERVICE_SILENT"),
        ],
    )
    def test_tells_a_silent_name_server_from_an_unknown_name(self, number, code):
        assert judge_name_error(number) == code

    @pytest.mark.parametrize(
        "said",
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 9000, b"220 mail.example ESMTP\r\n"],
        ids=["http", "zeros", "smtp"],
    )
    def test_names_something_else_that_answers(self, raw_port, said):
        def speak(peer: socket.socket) -> None:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)

        assert fail(endpoint_at(raw_port(speak))).code == "NOT_SSH"

    def test_names_something_else_that_answers_and_stays(self, raw_port):
        assert fail(endpoint_at(raw_port(lambda peer: peer.sendall(b"+OK ready\r\n")))).code == "NOT_SSH"

    def test_gives_up_on_a_server_that_stops_after_its_version(self, raw_port):
        error = fail(endpoint_at(raw_port(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"))))
        assert error.code in {"PORT_SILENT", "TOO_MANY_CONNECTIONS"}
        assert error.transient


class TestTooManyConnections:
    @pytest.mark.parametrize(
        "said",
        [b"", b"Exceeded MaxStartups\r\n", b"Not allowed at this time\r\n"],
        ids=["closed at once", "OpenSSH past MaxStartups", "OpenSSH penalty"],
    )
    def test_is_told_from_other_endings(self, raw_port, said):
        def drop(peer: socket.socket) -> None:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_RDWR)

        error = fail(endpoint_at(raw_port(drop)))
        assert (type(error), error.transient) == (TooManyConnections, True)


class TestHostKey:
    def test_is_refused_when_another_is_pinned_and_shows_both(self, server: Server):
        error = fail(server.endpoint(host_key=SOME_KEY))
        assert (type(error), error.transient) == (HostKeyChanged, False)
        assert SOME_KEY.fingerprint in error.message
        assert host_key_of(server.host_key).fingerprint in error.message

    def test_is_refused_when_the_pinned_kind_is_gone(self, server: Server):
        pinned = host_key_of(make_key("ecdsa-sha2-nistp256"))
        error = fail(server.endpoint(host_key=pinned))
        assert error.code == "HOST_KEY_CHANGED"
        assert "ecdsa-sha2-nistp256" in error.message
        assert "ssh-ed25519" in error.message

    def test_must_be_pinned(self, server: Server):
        assert isinstance(fail(server.endpoint(host_key=None)), HostKeyUnknown)

    def test_of_an_unspoken_kind_is_refused_before_anything_is_sent(self):
        error = fail(replace(endpoint_at(1), host_key=HostKey("ssh-dss", SOME_KEY.base64)))
        assert error.code == "HOST_KEY_UNKNOWN"

    def test_is_compared_before_the_secret_is_sent(self, server: Server):
        endpoint = server.endpoint(host_key=SOME_KEY, auth=PasswordAuth("hunter2"))
        assert fail(endpoint).code == "HOST_KEY_CHANGED"

    def test_is_read_without_signing_in(self, server: Server):
        assert read_host_key("127.0.0.1", server.port, limits=QUICK) == host_key_of(server.host_key)

    @pytest.mark.parametrize("kind", ["ecdsa-sha2-nistp256", "ssh-rsa"])
    def test_of_other_kinds_works(self, kind):
        other = Server(make_key(kind), make_key())
        try:
            connect(other.endpoint(), limits=QUICK).close()
        finally:
            other.close()


def encrypt(key) -> str:
    options = {"passphrase": "open sesame", "rounds": 1, "ignore_few_rounds": True}
    return key.export_private_key("openssh", **options).decode()


class TestAuth:
    def test_names_a_wrong_key(self, server: Server):
        endpoint = server.endpoint(auth=KeyAuth(make_key().export_private_key("openssh").decode()))
        error = fail(endpoint)
        assert (type(error), error.code, error.transient) == (AuthRefused, "WRONG_KEY", False)

    def test_names_the_kinds_that_are_allowed(self, server: Server):
        error = fail(server.endpoint(auth=PasswordAuth("hunter2")))
        assert error.code == "AUTH_METHOD_REFUSED"
        assert "publickey" in error.message

    def test_takes_the_right_password_and_names_a_wrong_one(self):
        server = Server(make_key(), make_key(), password="right")
        try:
            connect(server.endpoint(auth=PasswordAuth("right")), limits=QUICK).close()
            error = fail(server.endpoint(auth=PasswordAuth("wrong")))
        finally:
            server.close()
        assert (error.code, error.transient) == ("WRONG_PASSWORD", False)
        assert "wrong" not in str(error.numbers)

    @pytest.mark.parametrize(
        "text",
        ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"],
        ids=["empty", "words", "damaged"],
    )
    def test_names_an_unreadable_key(self, text):
        assert fail(replace(endpoint_at(1), auth=KeyAuth(text))).code == "KEY_UNREADABLE"

    def test_asks_for_the_passphrase(self):
        text = encrypt(make_key())
        assert fail(replace(endpoint_at(1), auth=KeyAuth(text))).code == "KEY_NEEDS_PASSPHRASE"
        assert fail(replace(endpoint_at(1), auth=KeyAuth(text, "wrong"))).code == "KEY_UNREADABLE"

    def test_accepts_an_encrypted_key(self, server: Server):
        text = encrypt(server.client_key)
        connect(server.endpoint(auth=KeyAuth(text, "open sesame")), limits=QUICK).close()


class TestEndpoint:
    def test_never_shows_a_secret(self):
        for auth in (KeyAuth("PRIVATE-TEXT", "PASSPHRASE-TEXT"), PasswordAuth("PASSWORD-TEXT")):
            shown = repr(Endpoint("h", 22, "fleet", SOME_KEY, auth)) + str(auth)
            assert "-TEXT" not in shown

    def test_fingerprint_is_the_one_of_ssh_keygen(self):
        key = make_key()
        assert host_key_of(key).fingerprint == key.get_fingerprint()

    def test_refuses_text_that_is_no_key(self):
        for text in ("", "ssh-ed25519", "ssh-ed25519 not*base64"):
            with pytest.raises(ValueError):
                HostKey.parse(text)
