"""How many sign-ins are under way at once: at one server, and in all."""

from __future__ import annotations

import threading

import pytest

from hosts.ssh.admission import IN_ALL, PER_SERVER, Admission
from hosts.ssh.errors import ConnectionLost, TooManyConnections

MAX_STARTUPS = 10  # OpenSSH drops from this many on


class Crowd:
    """Threads that enter and stay until they are let go; `most` is how many were inside together."""

    def __init__(self, admission: Admission, servers: list[tuple[str, int]]) -> None:
        self._admission = admission
        self._lock = threading.Lock()
        self._inside: dict[tuple[str, int], int] = {}
        self.most_at_one = self.most_in_all = self.entered = 0
        self.threads = [threading.Thread(target=self._visit, args=(server,)) for server in servers]

    def _visit(self, server: tuple[str, int]) -> None:
        with self._admission.enter(*server):
            self._count(server, 1)
            threading.Event().wait(0.01)
            self._count(server, -1)

    def _count(self, server: tuple[str, int], change: int) -> None:
        with self._lock:
            self._inside[server] = self._inside.get(server, 0) + change
            self.entered += change > 0
            self.most_at_one = max(self.most_at_one, *self._inside.values(), 0)
            self.most_in_all = max(self.most_in_all, sum(self._inside.values()))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(20)


class TestABound:
    def test_of_one_server_holds_and_lets_everybody_in_at_last(self):
        crowd = Crowd(Admission(per_server=3, in_all=100), [("bastion", 22)] * 40)
        crowd.run()
        assert (crowd.entered, crowd.most_at_one) == (40, 3)

    def test_in_all_holds_over_many_servers(self):
        crowd = Crowd(Admission(per_server=3, in_all=5), [(f"host-{number}", 22) for number in range(40)])
        crowd.run()
        assert (crowd.entered, crowd.most_in_all) == (40, 5)

    def test_leaves_room_for_three_processes_below_the_default_of_sshd(self):
        assert 3 * PER_SERVER < MAX_STARTUPS
        assert PER_SERVER < IN_ALL


class TestAPlace:
    def test_that_does_not_come_free_is_named(self):
        admission = Admission(per_server=1)
        with admission.enter("gpu-a", 22), pytest.raises(TooManyConnections) as caught:
            admission._take(("gpu-a", 22), 0.05)
        assert (caught.value.code, caught.value.transient) == ("SIGN_INS_UNDER_WAY", True)

    def test_is_given_back_after_a_failure(self):
        admission = Admission(per_server=1)
        with pytest.raises(ConnectionLost), admission.enter("gpu-a", 22):
            raise ConnectionLost("CONNECTION_LOST", address="gpu-a", detail="cut")
        with admission.enter("gpu-a", 22, seconds=0.05):
            pass

    def test_at_one_port_is_none_at_another(self):
        admission = Admission(per_server=1)
        with admission.enter("gateway", 2201), admission.enter("gateway", 2202, seconds=0.05):
            pass
