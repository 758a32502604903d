"""What is done with: deployments leave the lists and keep their history, credentials are forgotten unless in use."""

import pytest
from django.urls import reverse
from django.utils import timezone

from audit.models import Entry
from deployments.models import Plan, Run
from deployments.planning.refusals import Refused
from deployments.services.plans import make_start_plan
from hosts.models import Credential
from tests import factories, people

pytestmark = pytest.mark.django_db


@pytest.fixture
def page(client, environment):
    client.force_login(people.administrator(environment))
    return client


def archive(page, deployment):
    return page.post(reverse("deployments:archive", args=[deployment.pk]))


def text(page, name, *arguments, query="") -> str:
    return page.get(reverse(name, args=arguments) + query).content.decode()


class TestDeployment:
    def test_leaves_the_lists_when_archived_and_is_found_among_the_archived(self, page, deployment):
        assert archive(page, deployment).status_code == 302
        assert "qwen-chat</a>" not in text(page, "fleet")
        assert "qwen-chat</a>" not in text(page, "deployments:list")
        assert "qwen-chat</a>" in text(page, "deployments:list", query="?archived=1")
        assert Entry.objects.filter(action="deployment.archive").count() == 1

    def test_keeps_its_page_and_comes_back(self, page, deployment):
        archive(page, deployment)
        assert "Restore" in text(page, "deployments:detail", deployment.pk)
        assert "Plan a start</button>" not in text(page, "deployments:detail", deployment.pk)
        page.post(reverse("deployments:restore", args=[deployment.pk]))
        assert "qwen-chat</a>" in text(page, "deployments:list")

    def test_gives_back_what_its_open_plan_held(self, page, host, deployment):
        plan = factories.make_plan(deployment, host)
        archive(page, deployment)
        plan.refresh_from_db()
        assert plan.state == Plan.State.DROPPED

    @pytest.mark.parametrize("state", ["ready", "orphaned", "stopping", "starting"])
    def test_stays_while_something_of_it_lives(self, page, host, deployment, state):
        factories.make_launch(deployment, host, state=state)
        answer = archive(page, deployment)
        assert answer.status_code == 422
        assert "DEPLOYMENT_IN_USE" in answer.content.decode()
        deployment.refresh_from_db()
        assert deployment.archived_at is None

    def test_stays_while_a_run_is_at_work(self, page, host, deployment):
        factories.make_run(factories.make_plan(deployment, host, launches=0), state="running")
        assert archive(page, deployment).status_code == 422

    def test_is_not_started_while_archived(self, page, deployment):
        archive(page, deployment)
        answer = page.post(reverse("deployments:plan", args=[deployment.pk]))
        assert answer.status_code == 422
        assert "DEPLOYMENT_ARCHIVED" in answer.content.decode()
        assert not Run.objects.exists()


class TestCredential:
    def test_that_nothing_uses_is_deleted_with_an_entry(self, page, environment):
        credential = factories.make_credential(environment, "old key")
        page.post(reverse("hosts:credential-delete", args=[credential.pk]))
        assert not Credential.objects.exists()
        assert Entry.objects.filter(action="credential.delete").count() == 1

    def test_with_which_a_host_is_reached_stays_and_the_host_is_named(self, page, host):
        answer = page.post(reverse("hosts:credential-delete", args=[host.credential_id]))
        assert answer.status_code == 422
        assert "gpu-07" in answer.content.decode()
        assert Credential.objects.filter(pk=host.credential_id).exists()
        assert not Entry.objects.filter(action="credential.delete").exists()


class TestSecret:
    def test_that_is_missing_is_named_before_a_plan_is_made(self, host, environment):
        deployment = factories.make_deployment(host, "with-token", secrets={"HF_TOKEN": "hub token"})
        made = make_start_plan(
            deployment=deployment,
            revision=deployment.revisions.first(),
            allow_code_loading=False,
            by=factories.BY,
            now=timezone.now(),
        )
        assert isinstance(made, Refused)
        assert made.reasons[0].code == "SECRET_MISSING"
        assert "hub token" in made.reasons[0].message
