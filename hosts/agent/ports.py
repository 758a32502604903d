"""Is a port free? Asked with bind(), because vLLM binds its port long before it listens.

Linux 6.18, tried:

| on the port                                  | bind() | bind() with SO_REUSEADDR | /proc/net/tcp      |
| -------------------------------------------- | ------ | ------------------------ | ------------------ |
| nothing                                      | works  | works                    | -                  |
| listening socket                             | fails  | fails                    | 0A                 |
| bound, not listening, without SO_REUSEADDR   | fails  | fails                    | not there          |
| bound, not listening, with SO_REUSEADDR      | fails  | works                    | not there          |
| only connections of an ended server          | fails  | works                    | 06, 04, 05, 01 ... |

vLLM and uvicorn set SO_REUSEADDR, so the last row does not hinder them and must not count as taken: an
instance that was stopped would block its own port for a minute. bind() alone cannot tell the last two rows
apart. So: a plain bind() that works is free; a bind() with SO_REUSEADDR that fails is taken; between the two
the kernel is asked for its bound and inactive sockets (sock_diag, Linux 6.8 and newer), and where it cannot
tell, leftover connections in /proc/net/tcp explain the failure and anything else is a bound socket.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import List, Optional, Tuple

from .proc import read_text

_LISTEN = 10
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_BOUND_INACTIVE = 13  # TCP_BOUND_INACTIVE, since Linux 6.8
_BOUND_INACTIVE_RELEASE = (6, 8)


def bind_error(address: str, port: int) -> Optional[str]:
    """Why the port cannot be used.

    None where a server with SO_REUSEADDR could take it and nobody else is about to.
    """
    try:
        family, target = _resolve(address, port)
    except OSError as error:
        return f"the address {address} is not usable: {error.strerror or error}"
    plain = _try_bind(family, target, reuse=False)
    if plain is None:
        return None
    if plain.errno != errno.EADDRINUSE:
        return plain.strerror or str(plain)
    if _try_bind(family, target, reuse=True) is not None:
        return "another socket listens on it or is bound to it"
    inactive = bound_inactive(port)
    if inactive is None:
        return None if _has_leftovers(port) else "another socket is bound to it and does not listen yet"
    if any(_overlap(address, other) for other in inactive):
        return "another socket is bound to it and does not listen yet"
    return None


def _resolve(address: str, port: int) -> Tuple[int, Tuple[object, ...]]:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_PASSIVE)
    return found[0][0], found[0][4]


def _try_bind(family: int, target: Tuple[object, ...], *, reuse: bool) -> Optional[OSError]:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError as error:
            return error
    return None


def _has_leftovers(port: int) -> bool:
    """Whether connections of an ended server hold the port (any state but LISTEN)."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(name, 16 << 20) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and int(fields[1].rpartition(":")[2], 16) == port and int(fields[3], 16) != _LISTEN:
                return True
    return False


def _overlap(address: str, other: str) -> bool:
    """Whether two local addresses compete for one port. A wildcard of either family competes with all."""
    first, second = ipaddress.ip_address(address), ipaddress.ip_address(other)
    mapped = getattr(second, "ipv4_mapped", None)
    second = mapped or second
    return first.is_unspecified or second.is_unspecified or first == second


def bound_inactive(port: int) -> Optional[List[str]]:
    """Local addresses of sockets that are bound to port and neither listen nor are connected.

    None: kernel too old.
    """
    release = os.uname().release.split(".")
    try:
        if (int(release[0]), int(release[1].split("-")[0])) < _BOUND_INACTIVE_RELEASE:
            return None
        return [address for family in (socket.AF_INET, socket.AF_INET6) for address in _dump_bound(family, port)]
    except (OSError, ValueError, IndexError, struct.error):
        return None


def _dump_bound(family: int, port: int) -> List[str]:
    """inet_diag_req_v2 for one family, answers inet_diag_msg (linux/inet_diag.h)."""
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << _BOUND_INACTIVE) + bytes(48)
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    size = 4 if family == socket.AF_INET else 16
    found: List[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4) as channel:
        channel.settimeout(5)
        channel.sendto(header + request, (0, 0))
        while True:
            content = channel.recv(1 << 17)
            while len(content) >= 16:
                length, kind = struct.unpack_from("=IH", content)
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR or length < 16:
                    raise OSError("sock_diag refused")
                (source,) = struct.unpack_from("!H", content, 20)
                if source == port:
                    found.append(str(ipaddress.ip_address(content[24 : 24 + size])))
                content = content[(length + 3) & ~3 :]
