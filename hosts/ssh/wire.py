"""The TCP part of a connection: our own socket with measured options, and a look at the first line."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from enum import Enum

from hosts.ssh.errors import SshError, TooManyConnections, Unreachable

# A cut link is noticed after 14.4 s with these (OpenSSH 9.2 in network namespaces, measured); the SSH
# library's own keep-alive alone noticed nothing in 75 s.
KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 3
KEEPALIVE_COUNT = 3
USER_TIMEOUT_MS = 10_000

FIRST_LINES_MAX = 8192
DROPPED = (b"Exceeded MaxStartups", b"Not allowed at this time")


class FirstLine(Enum):
    """What the server said before SSH began."""

    SSH = "ssh"
    MORE = "more"
    DROPPED = "dropped"
    OTHER = "other"


def judge_first_bytes(received: bytes, *, ended: bool) -> FirstLine:
    """Tell what `received` is. Lines before the version line are allowed (RFC 4253, 4.2)."""
    if received.startswith(b"SSH-") or b"\nSSH-" in received:
        return FirstLine.SSH
    if any(text in received for text in DROPPED) or (ended and not received):
        return FirstLine.DROPPED
    if ended or len(received) >= FIRST_LINES_MAX:
        return FirstLine.OTHER
    return FirstLine.MORE


def judge_name_error(number: int | None) -> str:
    """Tell a name that does not exist from a name server that did not answer: only the second passes by itself."""
    return "NAME_SERVICE_SILENT" if number == socket.EAI_AGAIN else "NAME_UNKNOWN"


def open_socket(address: str, port: int, *, timeout: float, no_delay: bool = True) -> socket.socket:
    """Connect by TCP within `timeout` seconds. Errors: NAME_UNKNOWN, NAME_SERVICE_SILENT, PORT_CLOSED, HOST_UNREACHABLE.

    Without TCP_NODELAY one exec takes 44 ms instead of 2 (measured); `no_delay` exists to measure that again.
    """
    try:
        sock = socket.create_connection((address, port), timeout=timeout)
    except socket.gaierror as error:
        raise Unreachable(judge_name_error(error.errno), address=address) from error
    except ConnectionRefusedError as error:
        raise Unreachable("PORT_CLOSED", address=address, port=port) from error
    except TimeoutError as error:
        detail = f"no answer within {timeout:g} s"
        raise Unreachable("HOST_UNREACHABLE", address=address, detail=detail) from error
    except OSError as error:
        detail = error.strerror or str(error)
        raise Unreachable("HOST_UNREACHABLE", address=address, detail=detail) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(no_delay))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        option = getattr(socket, name, None)  # absent on some systems: then TCP's own slow defaults hold
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock


def await_ssh(sock: socket.socket, *, address: str, port: int, timeout: float) -> None:
    """Wait until the server has sent its version line, without taking it from the socket.

    Errors: PORT_SILENT (nothing, or no whole line, within `timeout` seconds), NOT_SSH, TOO_MANY_CONNECTIONS.
    The SSH library gives one text for all of these, hence the look beforehand.
    """
    until = time.monotonic() + timeout
    received = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not _wait_readable(sock, left):
            code = "NOT_SSH" if received else "PORT_SILENT"
            raise Unreachable(code, address=address, port=port, seconds=f"{timeout:g}")
        try:
            peeked = sock.recv(FIRST_LINES_MAX, socket.MSG_PEEK)
        except OSError as error:
            raise TooManyConnections("TOO_MANY_CONNECTIONS", address=address) from error
        verdict = judge_first_bytes(peeked, ended=not peeked)
        if verdict is FirstLine.MORE and peeked == received:
            # Nothing new although readable: the same bytes, or an end behind them.
            if _has_ended(sock):
                verdict = judge_first_bytes(peeked, ended=True)
            else:
                time.sleep(0.01)
        received = peeked
        if verdict is FirstLine.SSH:
            return
        if verdict is not FirstLine.MORE:
            raise _as_error(verdict, address=address, port=port)


def _wait_readable(sock: socket.socket, seconds: float) -> bool:
    poller = select.poll()  # select() knows no descriptor above 1023
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _has_ended(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))


def _as_error(verdict: FirstLine, *, address: str, port: int) -> SshError:
    if verdict is FirstLine.DROPPED:
        return TooManyConnections("TOO_MANY_CONNECTIONS", address=address)
    return Unreachable("NOT_SSH", address=address, port=port)
