"""The watcher and a host that refuses it: one attempt, then nothing until a person presses Refresh."""

import time

import pytest
from django.utils import timezone

from deployments.watching import Watcher, lease
from hosts import services
from hosts.connections import connections
from hosts.models import Host, HostWatch
from hosts.pages import trouble_of
from tests.fleet.conftest import ANN, eventually
from tests.fleet.test_lost_workers import watched

pytestmark = pytest.mark.django_db(transaction=True)
OTHER_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIEq1fVjPpyAvKZ2UAgRTuMdsSNNkC1JyGnnQXW3GbR4e"


@pytest.fixture
def host(enrol) -> Host:
    host = enrol("gpu-a")
    connections.close_all()
    return host


@pytest.fixture
def link(fleet):
    return fleet["gpu-a"].link


def refuse_sign_in(host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(user="somebody")


def refuse_key(host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(host_key=OTHER_KEY)


def change_machine(host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(machine_id="another")


REFUSALS = {"WRONG_KEY": refuse_sign_in, "HOST_KEY_CHANGED": refuse_key, "MACHINE_CHANGED": change_machine}


def watch_until_left_alone(host: Host) -> HostWatch:
    """The watcher's thread ends by itself: nothing is left to stop."""
    Watcher().watch_host(host.pk)
    return HostWatch.objects.get(host=host)


def press_refresh(host: Host) -> None:
    connections.close_all()
    services.ask_for_facts(host=Host.objects.get(pk=host.pk), by=ANN, now=timezone.now())


class TestARefusal:
    @pytest.mark.parametrize("code", REFUSALS)
    def test_is_met_with_one_attempt_and_told(self, host, link, code):
        REFUSALS[code](host)
        before = link.connects
        watch = watch_until_left_alone(host)
        assert (watch.problem["code"], watch.waits_for_person, watch.until) == (code, True, None)
        assert link.connects == before + 1
        host = Host.objects.select_related("watch").get(pk=host.pk)
        assert "not tried again by itself" in trouble_of(host)["next_step"]

    @pytest.mark.parametrize("code", REFUSALS)
    def test_keeps_every_watcher_away(self, host, link, code):
        REFUSALS[code](host)
        watch_until_left_alone(host)
        before = link.connects
        assert Watcher().due() == []
        assert not lease(host.pk)
        Watcher().watch_host(host.pk)
        assert link.connects == before

    @pytest.mark.parametrize("code", REFUSALS)
    def test_that_comes_again_after_refresh_was_one_more_attempt(self, host, link, code):
        REFUSALS[code](host)
        watch_until_left_alone(host)
        before = link.connects
        press_refresh(host)
        assert Host.objects.get(pk=host.pk).problem["code"] == code
        assert link.connects == before + 1
        assert Watcher().due() == []

    def test_ends_with_a_refresh_that_succeeds(self, host):
        refuse_sign_in(host)
        watch_until_left_alone(host)
        Host.objects.filter(pk=host.pk).update(user=host.user)
        press_refresh(host)
        assert Host.objects.get(pk=host.pk).problem is None
        assert Watcher().due() == [host.pk]
        with watched(host):
            eventually(lambda: HostWatch.objects.filter(host=host, reachable=True, problem__isnull=True).exists())


class TestABrokenLink:
    def test_is_tried_again_by_itself_and_held_meanwhile(self, host, fleet, link):
        fleet["gpu-a"].reset(1)
        before = link.connects
        with watched(host):
            eventually(lambda: HostWatch.objects.filter(host=host, reachable=True).exists())
        assert link.connects >= before + 2

    def test_keeps_the_host_for_as_long_as_the_watcher_waits(self, host, fleet):
        fleet["gpu-a"].reset(10_000)
        time.sleep(0.1)
        with watched(host):
            watch = eventually(lambda: HostWatch.objects.filter(host=host, reachable=False).first())
            assert watch.problem["code"] == "TOO_MANY_CONNECTIONS"
            assert not watch.waits_for_person
            assert watch.until > timezone.now()
