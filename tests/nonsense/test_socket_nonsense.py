"""Absurd frames on the sockets: taken as nothing, and the socket goes on."""

import json

import pytest

from tests import factories, people
from tests.pages.test_sockets import follow, launch, numbers_until, talk  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
FRAMES = [
    "\x00",
    "x" * (1 << 20),
    "[" * 100_000,
    '{"from": 1e999}',
    '{"from": NaN}',
    '{"from": null}',
    '{"from": {}}',
    '{"from": "' + "9" * 5000 + '"}',
    '{"follow": ["fleet\\n", "host.\\u0000", "launch.' + "0" * 36 + '", "run.' + "9" * 36 + '"]}',
    '{"follow": "fleet"}',
    '"follow"',
    "null",
]


@pytest.fixture
def environment(db):
    return factories.make_environment("Shop")


def frame(text: str | bytes) -> dict:
    key = "bytes" if isinstance(text, bytes) else "text"
    return {"type": "websocket.receive", key: text}


class TestTopics:
    @pytest.mark.parametrize("text", [*FRAMES, b"\x00\xff", b"{}"], ids=lambda text: repr(text[:24]))
    def test_go_on_after_nonsense(self, environment, launch, text):  # noqa: F811
        async def scenario(browser):
            await browser.send_input(frame(text))
            first = (await browser.hear())["following"]
            return first, await follow(browser, "fleet")

        assert talk("/ws/topics/", people.viewer(environment), scenario)[1] == ([], ["fleet"])

    def test_are_bounded(self, environment, launch):  # noqa: F811
        wanted = [f"host.{launch.host_id}"] * 200
        found = talk("/ws/topics/", people.viewer(environment), lambda socket: follow(socket, *wanted))[1]
        assert found == [f"host.{launch.host_id}"]


class TestLog:
    @pytest.mark.parametrize("text", [*FRAMES, b"\x00\xff"], ids=lambda text: repr(text[:24]))
    def test_goes_on_after_nonsense(self, environment, launch, text):  # noqa: F811
        factories.write_log(launch, ["one", "two"])

        async def scenario(browser):
            await browser.send_input(frame(text))
            await browser.say('{"from": 1}')
            return await numbers_until(browser, 2)

        assert talk(f"/ws/launches/{launch.pk}/log/", people.viewer(environment), scenario)[1] == [1, 2]

    @pytest.mark.parametrize("first", [-5, 0, 1, "1", 1.9])
    def test_begins_at_the_first_line_at_the_earliest(self, environment, launch, first):  # noqa: F811
        factories.write_log(launch, ["one", "two"])

        async def scenario(browser):
            await browser.say(json.dumps({"from": first}))
            return await numbers_until(browser, 2)

        assert talk(f"/ws/launches/{launch.pk}/log/", people.viewer(environment), scenario)[1] == [1, 2]

    def test_waits_where_the_number_lies_far_ahead(self, environment, launch):  # noqa: F811
        factories.write_log(launch, ["one", "two"])

        async def scenario(browser):
            await browser.say(json.dumps({"from": 10**30}))
            return await browser.receive_nothing(timeout=0.2)

        assert talk(f"/ws/launches/{launch.pk}/log/", people.viewer(environment), scenario)[1] is True
