"""Sockets of a page. They subscribe first, then read, so that nothing falls between; and ask again for the right to listen."""

import json
import re
import time

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model

from deployments.access import may_follow, stream_to_read
from deployments.log_pages import log_page

MOST_TOPICS = 60
MOST_LINES = 2000
RECHECK_SECONDS = 10
LONGEST_FRAME = 16 * 1024
TOPIC = re.compile(r"fleet|(?:host|deployment|run|launch)\.[0-9a-f-]{1,36}")


def read_frame(text: str | None) -> dict:
    """What a page said; nothing where it is no JSON object, or longer than any page of ours would write."""
    try:
        found = json.loads(text) if text and len(text) <= LONGEST_FRAME else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class SignedInConsumer(AsyncWebsocketConsumer):
    """Refuses strangers before accepting, and looks at the account again every ten seconds of traffic."""

    checked_at = 0.0

    async def connect(self):
        user = self.scope["user"]
        if not user.is_authenticated:
            await self.close(code=4401)
            return
        await self.begin()

    async def begin(self):
        raise NotImplementedError

    async def fresh_user(self):
        """The account as it is now; None when it is gone or locked."""
        user = await get_user_model().objects.filter(pk=self.scope["user"].pk, is_active=True).afirst()
        self.checked_at = time.monotonic()
        return user

    def due(self) -> bool:
        return time.monotonic() - self.checked_at > RECHECK_SECONDS


class TopicConsumer(SignedInConsumer):
    """Follows topics: the page asks for some, and is told which one changed."""

    async def begin(self):
        self.topics: set[str] = set()
        await self.accept()

    async def disconnect(self, code):
        for topic in getattr(self, "topics", ()):
            await self.channel_layer.group_discard(topic, self.channel_name)

    async def receive(self, text_data=None, bytes_data=None):
        for topic in self.asked(text_data):
            user = await self.fresh_user()
            if user is not None and await database_sync_to_async(may_follow)(user, topic):
                await self.channel_layer.group_add(topic, self.channel_name)
                self.topics.add(topic)
        await self.send(json.dumps({"following": sorted(self.topics)}))

    def asked(self, text: str | None) -> list[str]:
        wanted = read_frame(text).get("follow")
        if not isinstance(wanted, list):
            return []
        known = [topic for topic in wanted if isinstance(topic, str) and TOPIC.fullmatch(topic)]
        return known[: MOST_TOPICS - len(self.topics)]

    async def topic_changed(self, message):
        topic = message["topic"]
        if self.due():
            user = await self.fresh_user()
            if user is None:
                await self.close(code=4401)
                return
            if not await database_sync_to_async(may_follow)(user, topic):
                self.topics.discard(topic)
                await self.channel_layer.group_discard(topic, self.channel_name)
                return
        await self.send(json.dumps({"changed": topic}))


class LogConsumer(SignedInConsumer):
    """A log by line number: the page says from where, gets what is stored, then what comes."""

    async def begin(self):
        self.launch_id = self.scope["url_route"]["kwargs"]["launch_id"]
        self.next_line: int | None = None
        user = await self.fresh_user()
        if user is None or await self.stream(user) is None:
            await self.close(code=4403)
            return
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()

    @property
    def group(self) -> str:
        return f"log.{self.launch_id}"

    async def disconnect(self, code):
        await self.channel_layer.group_discard(self.group, self.channel_name)

    async def stream(self, user):
        return await database_sync_to_async(stream_to_read)(user, self.launch_id)

    async def receive(self, text_data=None, bytes_data=None):
        try:
            self.next_line = max(1, int(read_frame(text_data)["from"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        await self.catch_up()

    async def topic_changed(self, message):
        if self.next_line is not None:
            await self.catch_up()

    async def catch_up(self):
        """Send everything from the next line on, in pieces. The reader's socket holds this back, never the run."""
        user = self.scope["user"]
        if self.due():
            user = await self.fresh_user()
        stream = await self.stream(user) if user is not None else None
        if stream is None:
            await self.close(code=4403)
            return
        while self.next_line <= stream.lines:
            page = await database_sync_to_async(log_page)(stream, first=self.next_line, limit=MOST_LINES)
            if not page["lines"]:
                break
            self.next_line = page["next"]
            await self.send(await sync_to_async(json.dumps)(page))
