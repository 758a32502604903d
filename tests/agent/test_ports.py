# ruff: noqa: S104 - ports are asked for, nothing listens on them
from __future__ import annotations

import socket

import pytest

from hosts.agent.ports import bind_error, bound_inactive


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bind(port: int, *, reuse: bool, address: str = "127.0.0.1", listen: bool = False) -> socket.socket:
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if reuse:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, port))
    if listen:
        held.listen()
    return held


@pytest.fixture
def leftovers(port: int) -> int:
    """A port where only connections of an ended server are left (TIME_WAIT)."""
    server = bind(port, reuse=True, listen=True)
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _address = server.accept()
    accepted.close()
    client.close()
    server.close()
    return port


class TestBindError:
    def test_is_none_for_a_free_port(self, port: int) -> None:
        assert bind_error("127.0.0.1", port) is None
        assert bind_error("0.0.0.0", port) is None
        assert bind_error("::", port) is None

    @pytest.mark.parametrize("listen", [True, False])
    @pytest.mark.parametrize("reuse", [True, False])
    @pytest.mark.parametrize(
        ("held", "asked"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")]
    )
    def test_names_a_socket_that_holds_the_port(
        self, port: int, held: str, asked: str, reuse: bool, listen: bool
    ) -> None:
        with bind(port, reuse=reuse, address=held, listen=listen):
            assert bind_error(asked, port) is not None
        assert bind_error(asked, port) is None

    def test_is_none_where_only_old_connections_are_left(self, leftovers: int) -> None:
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", leftovers))
        assert bind_error("127.0.0.1", leftovers) is None

    def test_names_a_socket_that_is_bound_beside_old_connections(self, leftovers: int) -> None:
        if bound_inactive(leftovers) is None:
            pytest.skip("this kernel cannot name bound sockets (older than 6.8)")
        with bind(leftovers, reuse=True):
            assert bind_error("127.0.0.1", leftovers) is not None

    def test_names_an_address_that_the_host_has_not(self, port: int) -> None:
        assert bind_error("192.0.2.1", port) is not None
        assert "not usable" in str(bind_error("no-such-host", port))
