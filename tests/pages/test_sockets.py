"""Sockets: strangers are refused before anything is said; what is told is what may be seen."""

import json

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser

from fleetadmin.routing import socket_routes
from tests import factories, people

pytestmark = pytest.mark.django_db(transaction=True)
LINES = [f"INFO 03-01 12:00:00 [core.py:1] line {number}" for number in range(1, 2501)]


@pytest.fixture
def launch(environment):
    host = factories.make_host(environment, "gpu-07", gpus=1)
    return factories.make_launch(factories.make_deployment(host, "qwen-chat"), host, state="starting")


class Socket(ApplicationCommunicator):
    """One browser's socket. (Channels' own helper cannot be imported without its development server.)"""

    def __init__(self, path: str, user) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "headers": [],
            "subprotocols": [],
            "query_string": b"",
            "user": user,
        }
        super().__init__(URLRouter(socket_routes), scope)

    async def connect(self) -> dict:
        await self.send_input({"type": "websocket.connect"})
        return await self.receive_output(timeout=5)

    async def say(self, text: str) -> None:
        await self.send_input({"type": "websocket.receive", "text": text})

    async def hear(self) -> dict:
        return json.loads((await self.receive_output(timeout=5))["text"])

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait()


def talk(path: str, user, scenario):
    """Connect, and let `scenario(socket)` go on; gives (connected, what the scenario gave, close code)."""

    async def run():
        browser = Socket(path, user)
        answer = await browser.connect()
        if answer["type"] != "websocket.accept":
            return False, None, answer["code"]
        found = await scenario(browser) if scenario else None
        await browser.leave()
        return True, found, None

    return async_to_sync(run)()


async def follow(browser, *topics: str) -> list[str]:
    await browser.say(json.dumps({"follow": list(topics)}))
    return (await browser.hear())["following"]


class TestTopics:
    def test_refuses_who_is_not_signed_in(self, environment):
        assert talk("/ws/topics/", AnonymousUser(), None)[::2] == (False, 4401)

    def test_follows_what_the_reader_may_see(self, environment, launch):
        wanted = [
            "fleet",
            f"host.{launch.host_id}",
            f"deployment.{launch.deployment_id}",
            f"launch.{launch.pk}",
        ]
        found = talk("/ws/topics/", people.viewer(environment), lambda socket: follow(socket, *wanted))[1]
        assert found == sorted(wanted)

    @pytest.mark.parametrize("who", ["stranger", "elsewhere"])
    def test_follows_nothing_for_others_and_says_nothing_of_it(self, environment, launch, who):
        user = people.stranger() if who == "stranger" else people.viewer(factories.make_environment("Elsewhere"))
        wanted = [
            f"host.{launch.host_id}",
            f"launch.{launch.pk}",
            "launch.00000000-0000-4000-8000-000000000000",
        ]
        assert talk("/ws/topics/", user, lambda socket: follow(socket, *wanted))[1] == []

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "nonsense",
            "[]",
            '{"follow": 7}',
            '{"follow": [7, null, "log.x", "host.1; drop"]}',
            '{"follow": {}}',
        ],
    )
    def test_takes_nonsense_as_nothing(self, environment, launch, text):
        async def scenario(browser):
            await browser.say(text)
            return await browser.hear()

        assert talk("/ws/topics/", people.viewer(environment), scenario)[1] == {"following": []}

    def test_tells_which_topic_changed(self, environment, launch):
        topic = f"launch.{launch.pk}"

        async def scenario(browser):
            await follow(browser, topic)
            await get_channel_layer().group_send(topic, {"type": "topic.changed", "topic": topic})
            return await browser.hear()

        assert talk("/ws/topics/", people.viewer(environment), scenario)[1] == {"changed": topic}

    def test_ends_for_an_account_that_was_locked(self, environment, launch, monkeypatch):
        monkeypatch.setattr("deployments.consumers.RECHECK_SECONDS", -1)
        user = people.viewer(environment)
        topic = f"launch.{launch.pk}"

        async def scenario(browser):
            await follow(browser, topic)
            await sync_to_async(type(user).objects.filter(pk=user.pk).update)(is_active=False)
            await get_channel_layer().group_send(topic, {"type": "topic.changed", "topic": topic})
            return await browser.receive_output(timeout=5)

        assert talk("/ws/topics/", user, scenario)[1] == {"type": "websocket.close", "code": 4401}


class TestLog:
    def path(self, launch) -> str:
        return f"/ws/launches/{launch.pk}/log/"

    def test_refuses_who_is_not_signed_in(self, launch):
        assert talk(self.path(launch), AnonymousUser(), None)[::2] == (False, 4401)

    def test_refuses_a_stranger_as_if_there_were_no_log(self, launch):
        absent = "/ws/launches/00000000-0000-4000-8000-000000000000/log/"
        user = people.stranger()
        assert talk(self.path(launch), user, None)[::2] == talk(absent, user, None)[::2] == (False, 4403)

    def test_gives_every_line_once_and_then_what_comes(self, environment, launch):
        factories.write_log(launch, LINES)

        async def scenario(browser):
            await browser.say('{"from": 1}')
            numbers = await numbers_until(browser, len(LINES))
            await sync_to_async(factories.write_log)(launch, ["one more", "and another"])
            return numbers + await numbers_until(browser, len(LINES) + 2)

        found = talk(self.path(launch), people.viewer(environment), scenario)[1]
        assert found == list(range(1, len(LINES) + 3))

    def test_goes_on_from_the_number_that_is_asked_for(self, environment, launch):
        factories.write_log(launch, LINES)

        async def scenario(browser):
            await browser.say(json.dumps({"from": len(LINES) - 1}))
            return await numbers_until(browser, len(LINES))

        found = talk(self.path(launch), people.viewer(environment), scenario)[1]
        assert found == [len(LINES) - 1, len(LINES)]


async def numbers_until(browser, last: int) -> list[int]:
    numbers: list[int] = []
    while not numbers or numbers[-1] < last:
        numbers += [line[0] for line in (await browser.hear())["lines"]]
    return numbers


class TestAnyOtherSocket:
    @pytest.mark.parametrize("path", ["/ws/", "/ws/nothing/", "/ws/launches/1/log/", "/"])
    def test_is_closed(self, environment, path):
        assert talk(path, people.administrator(environment), None)[::2] == (False, 4404)
