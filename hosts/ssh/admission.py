"""How many sign-ins one process has under way: few at one server, not too many in all.

sshd counts connections that have not signed in yet and drops some of them from the 10th on (MaxStartups 10:30:100,
OpenSSH's default). The processes of an installation may stand in different containers and share nothing,
so each keeps to a bound of its own, with which worker, watcher and one more stay below 10.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from hosts.ssh.errors import TooManyConnections

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_SERVER = 3
# Key exchanges side by side only slow each other down (one interpreter lock), until all of them run into the
# time-out of the banner.
IN_ALL = 16
WAIT_S = 60.0


class Admission:
    """Bounds of one process. Safe to use from several threads; one that is inside must not enter again."""

    def __init__(self, *, per_server: int = PER_SERVER, in_all: int = IN_ALL) -> None:
        self._per_server = per_server
        self._in_all = in_all
        self._inside: dict[tuple[str, int], int] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def enter(self, address: str, port: int, *, seconds: float = WAIT_S) -> Iterator[None]:
        """Hold one place at the server from before the connect to the end of the sign-in.

        Errors: TooManyConnections (SIGN_INS_UNDER_WAY) when no place came free within `seconds`.
        """
        self._take((address, port), seconds)
        try:
            yield
        finally:
            self._give_back((address, port))

    def _take(self, server: tuple[str, int], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while not self._has_place(server):
                left = until - time.monotonic()
                if left <= 0:
                    raise TooManyConnections("SIGN_INS_UNDER_WAY", address=server[0], seconds=f"{seconds:g}")
                self._changed.wait(left)
            self._inside[server] = self._inside.get(server, 0) + 1

    def _has_place(self, server: tuple[str, int]) -> bool:
        return self._inside.get(server, 0) < self._per_server and sum(self._inside.values()) < self._in_all

    def _give_back(self, server: tuple[str, int]) -> None:
        with self._changed:
            self._inside[server] -= 1
            if not self._inside[server]:
                del self._inside[server]
            self._changed.notify_all()


ADMISSION = Admission()
