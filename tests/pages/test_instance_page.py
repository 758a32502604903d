import pytest
from django.urls import reverse

from accounts.models import Role
from accounts.services import assign_role, find_permissions
from deployments import log_pages
from deployments.planning.phases import Phase
from deployments.planning.states import LaunchState
from tests import factories
from tests.people import person
from tests.streams import body_of

pytestmark = pytest.mark.django_db
LINES = [f"INFO 03-01 12:00:{number % 60:02d} [core.py:{number}] line {number}" for number in range(1, 1201)]


def text_of(answer, status: int = 200) -> str:
    assert answer.status_code == status
    return answer.content.decode()


@pytest.fixture
def launch(host, deployment):
    return factories.make_launch(deployment, host, **factories.ready_values(host.devices.first()))


def address(launch, name: str = "instance") -> str:
    return reverse(f"deployments:{name}", args=[launch.pk])


class TestInstance:
    @pytest.mark.parametrize("state", [state.value for state in LaunchState])
    def test_is_shown_in_every_state(self, page, host, deployment, state):
        launch = factories.make_launch(deployment, host, state=state)
        assert state in text_of(page(address(launch), "viewer"))

    @pytest.mark.parametrize("phase", ["", "of-a-newer-version", *[phase.value for phase in Phase]])
    def test_is_shown_in_every_phase(self, page, host, deployment, phase):
        launch = factories.make_launch(deployment, host, state="starting", phase=phase)
        assert 'class="phases"' in text_of(page(address(launch), "viewer"))

    def test_shows_what_was_verified_and_measured(self, page, launch):
        text = text_of(page(address(launch), "viewer"))
        for part in (
            "A token was generated",
            "Hello",
            "41 ms",
            "377,856 tokens",
            "VLLM::EngineCore",
            "38 GiB",
            "58.0 s",
        ):
            assert part in text

    def test_shows_how_it_ended_and_why(self, page, host, deployment):
        launch = factories.make_launch(deployment, host, **factories.failed_values())
        text = text_of(page(address(launch), "viewer"))
        for part in ("exit code 1", "NO_MEMORY_FOR_KV_CACHE", "ValueError: No available memory"):
            assert part in text

    def test_offers_a_stop_to_who_may(self, page, launch):
        stop = reverse("deployments:stop", args=[launch.deployment_id])
        assert stop in text_of(page(address(launch), "operator"))
        assert stop not in text_of(page(address(launch), "viewer"))


class TestLog:
    def test_shows_the_newest_lines_with_their_numbers(self, page, launch):
        factories.write_log(launch, LINES)
        text = text_of(page(address(launch), "viewer"))
        assert 'id="L1200"' in text
        assert 'id="L700"' not in text
        assert "1,200 lines stored" in text

    def test_shows_lines_from_a_number(self, page, launch):
        factories.write_log(launch, LINES)
        text = text_of(page(address(launch) + "?from=100", "viewer"))
        assert 'id="L100"' in text
        assert 'id="L99"' not in text

    @pytest.mark.parametrize("number", ["-1", "0", "x", "9" * 40, "٣"])
    def test_takes_a_nonsense_number_as_none(self, page, launch, number):
        factories.write_log(launch, LINES)
        assert page(address(launch), "viewer", data={"from": number}).status_code == 200

    def test_shows_no_escape_codes_and_no_markup(self, page, launch):
        factories.write_log(launch, ["\x1b[31mred\x1b[0m <b>bold</b>"])
        text = text_of(page(address(launch), "viewer"))
        assert "red &lt;b&gt;bold" in text
        assert "\x1b" not in text

    def test_is_given_in_pieces(self, page, launch):
        factories.write_log(launch, LINES)
        body = page(address(launch, "instance-lines"), "viewer", data={"from": 1199, "limit": 50}).json()
        assert [line[0] for line in body["lines"]] == [1199, 1200]
        assert (body["next"], body["total"]) == (1201, 1200)

    def test_is_given_whole_as_plain_text(self, page, launch):
        factories.write_log(launch, LINES)
        answer = page(address(launch, "instance-log"), "viewer")
        assert answer["Content-Type"] == "text/plain; charset=utf-8"
        assert answer["Content-Disposition"].startswith('attachment; filename="qwen-chat-0-')
        assert body_of(answer).decode().splitlines() == LINES

    def test_is_given_whole_in_pieces_that_are_small(self, page, launch, monkeypatch):
        monkeypatch.setattr("deployments.log_pages.PIECE_LINES", 500)
        factories.write_log(launch, LINES)
        asked = []
        read = log_pages.plain_text
        monkeypatch.setattr(log_pages, "plain_text", lambda *a, **k: asked.append(k["limit"]) or read(*a, **k))
        answer = page(address(launch, "instance-log"), "viewer")
        assert body_of(answer).decode().splitlines() == LINES
        assert asked == [500, 500, 200]

    def test_is_empty_where_nothing_was_read(self, page, launch):
        assert body_of(page(address(launch, "instance-log"), "viewer")) == b""

    def test_is_not_shown_without_the_right(self, client, environment, launch):
        factories.write_log(launch, ["a secret line"])
        user = person("nora")
        role = Role.objects.create(name="No logs", slug="no-logs")
        role.permissions.set(find_permissions(["deployments.view_deployment"]))
        assign_role(role=role, user=user, environment=environment)
        client.force_login(user)
        assert "a secret line" not in text_of(client.get(address(launch)))
        assert client.get(address(launch, "instance-log")).status_code == 403
        assert client.get(address(launch, "instance-lines")).status_code == 403
