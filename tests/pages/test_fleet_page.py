from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from hosts.models import HostWatch
from tests import factories

pytestmark = pytest.mark.django_db


def text_of(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


class TestEmptyFleet:
    def test_says_how_to_begin_to_who_may(self, page, environment):
        text = text_of(page(reverse("fleet"), "administrator"))
        assert "No host yet." in text
        assert reverse("hosts:new") in text

    def test_says_whom_to_ask_to_who_may_not(self, page, environment):
        text = text_of(page(reverse("fleet"), "viewer"))
        assert "An administrator can enrol one." in text
        assert reverse("hosts:new") not in text

    def test_says_that_a_deployment_comes_next(self, page, host):
        text = text_of(page(reverse("fleet"), "operator"))
        assert "No deployment yet." in text
        assert reverse("deployments:new") in text


class TestFleet:
    def test_counts_ready_instances_against_those_wanted(self, page, host):
        deployment = factories.make_deployment(host, "pair", instances=2)
        for slot, device in enumerate(host.devices.all()):
            factories.make_launch(deployment, host, slot=slot, **factories.ready_values(device))
        assert "2 of 2 ready" in text_of(page(reverse("fleet"), "viewer"))

    def test_does_not_count_what_was_only_planned(self, page, host, deployment):
        factories.make_plan(deployment, host)
        assert "not running" in text_of(page(reverse("fleet"), "viewer"))

    def test_shows_a_failure_with_its_cause_and_the_next_step(self, page, host, deployment):
        factories.make_launch(deployment, host, **factories.failed_values())
        text = text_of(page(reverse("fleet"), "viewer"))
        assert "No memory was left for the KV cache." in text
        assert "Lower the context length" in text
        assert "NO_MEMORY_FOR_KV_CACHE" in text

    def test_shows_equal_failures_of_a_deployment_once(self, page, host, deployment):
        for slot in range(2):
            factories.make_launch(deployment, host, slot=slot, **factories.failed_values())
        text = text_of(page(reverse("fleet"), "viewer"))
        assert text.count("Lower the context length") == 1
        assert "qwen-chat-1" in text

    def test_forgets_a_failure_once_its_slot_starts_anew(self, page, host, deployment):
        later = factories.NOW.replace(hour=13)
        factories.make_launch(deployment, host, **factories.failed_values())
        factories.make_launch(deployment, host, now=later, **factories.ready_values(host.devices.first()))
        assert "No memory was left" not in text_of(page(reverse("fleet"), "viewer"))

    def test_shows_an_orphan_with_what_it_holds(self, page, host, deployment):
        factories.make_launch(deployment, host, **factories.orphaned_values(host.devices.first()))
        text = text_of(page(reverse("fleet"), "operator"))
        assert "38.00 GiB" in text
        assert reverse("deployments:sweep", args=[deployment.pk]) in text

    def test_offers_no_sweep_to_a_viewer(self, page, host, deployment):
        factories.make_launch(deployment, host, **factories.orphaned_values(host.devices.first()))
        assert reverse("deployments:sweep", args=[deployment.pk]) not in text_of(page(reverse("fleet"), "viewer"))

    def test_does_not_call_an_unheard_host_down(self, page, host):
        factories.make_unheard(host)
        text = text_of(page(reverse("fleet"), "viewer"))
        assert "not heard" in text
        assert "not known to be down" in text
        assert "HOST_UNREACHABLE" in text

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"reachable": True, "until": datetime(2100, 1, 1, tzinfo=UTC)}, "reachable"),
            ({"reachable": True, "until": datetime(2026, 1, 1, tzinfo=UTC)}, "not watched"),
            ({"reachable": None, "until": None}, "not watched"),
            (None, "not watched"),
        ],
    )
    def test_calls_a_host_reachable_only_while_it_is_watched(self, page, host, values, words):
        if values is not None:
            HostWatch.objects.create(host=host, **values)
        text = text_of(page(reverse("fleet"), "viewer"))
        assert [state for state in ("reachable", "not watched") if f">{state}<" in text] == [words]

    def test_parts_memory_into_ours_and_that_of_others(self, page, environment):
        host = factories.make_host(environment, gpus=0)
        device = factories.make_device(host, index=5, used=60 * factories.GIB)
        deployment = factories.make_deployment(host)
        factories.make_launch(deployment, host, **factories.ready_values(device, held=38 * factories.GIB))
        text = text_of(page(reverse("fleet"), "viewer"))
        assert "ours: 38 GiB, others: 22 GiB" in text

    def test_draws_no_bar_where_nothing_was_read(self, page, environment):
        host = factories.make_host(environment, gpus=0)
        host.devices.update(use=None, use_at=None)
        text = text_of(page(reverse("fleet"), "viewer"))
        assert "no reading yet" in text
        assert 'class="memory"' not in text

    def test_hides_other_environments(self, page, host):
        elsewhere = factories.make_host(factories.make_environment("Elsewhere"), "secret-host")
        factories.make_deployment(elsewhere, "secret-deployment")
        text = text_of(page(reverse("fleet"), "administrator"))
        assert "gpu-07" in text
        assert "secret-" not in text


def fill(host, count: int) -> None:
    """More hosts, deployments and launches of every kind."""
    for _ in range(count):
        another = factories.make_host(host.environment)
        HostWatch.objects.create(host=another, reachable=True)
        deployment = factories.make_deployment(another)
        device = another.devices.first()
        factories.make_launch(deployment, another, slot=0, **factories.ready_values(device))
        factories.make_launch(deployment, another, slot=1, **factories.failed_values())
        factories.make_launch(deployment, another, slot=2, **factories.orphaned_values(device))


class TestNumberOfQueries:
    @pytest.mark.parametrize("name", ["fleet", "hosts:list", "deployments:list"])
    def test_is_the_same_for_a_larger_fleet(self, page, host, name):
        fill(host, 1)
        page(reverse(name), "operator")
        with CaptureQueriesContext(connection) as few:
            page(reverse(name), "operator")
        fill(host, 6)
        with CaptureQueriesContext(connection) as many:
            page(reverse(name), "operator")
        assert len(many) == len(few), [query["sql"][:160] for query in many][-20:]
