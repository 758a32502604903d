import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from audit.models import Entry
from tests import factories

pytestmark = pytest.mark.django_db


def text_of(answer, status: int = 200) -> str:
    assert answer.status_code == status
    return answer.content.decode()


class TestTrail:
    def test_lists_entries_of_the_environment(self, page, host, deployment):
        text = text_of(page(reverse("audit:list")))
        assert "deployment.create" in text
        assert "qwen-chat" in text

    def test_hides_other_environments(self, page, host):
        elsewhere = factories.make_host(factories.make_environment("Elsewhere"))
        factories.make_deployment(elsewhere, "hidden-one")
        assert "hidden-one" not in text_of(page(reverse("audit:list")))
        entry = Entry.objects.filter(object_label="hidden-one").first()
        assert page(reverse("audit:detail", args=[entry.sequence])).status_code == 404

    def test_filters(self, page, host, deployment):
        text = text_of(page(reverse("audit:list"), data={"action": "deployment.revise"}))
        assert "deployment.create" not in text
        assert "No entry." in text_of(page(reverse("audit:list"), data={"q": "nothing like it\x00"}))

    def test_shows_an_entry_with_its_hashes(self, page, host, deployment):
        entry = Entry.objects.get(action="deployment.revise")
        text = text_of(page(reverse("audit:detail", args=[entry.sequence])))
        for part in (entry.hash, entry.previous_hash, "NCCL_DEBUG"):
            assert part in text

    def test_needs_the_same_number_of_queries_for_more_entries(self, page, host):
        factories.make_deployment(host)
        page(reverse("audit:list"))
        with CaptureQueriesContext(connection) as few:
            page(reverse("audit:list"))
        for _ in range(10):
            factories.make_deployment(host)
        with CaptureQueriesContext(connection) as many:
            page(reverse("audit:list"))
        assert len(many) == len(few)
