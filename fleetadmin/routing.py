"""Every socket route. The last one closes what no other knows: Channels would answer 500 with a traceback."""

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path

from deployments.consumers import LogConsumer, TopicConsumer


class NoSuchSocket(AsyncWebsocketConsumer):
    async def connect(self):
        await self.close(code=4404)


socket_routes = [
    path("ws/topics/", TopicConsumer.as_asgi()),
    path("ws/launches/<uuid:launch_id>/log/", LogConsumer.as_asgi()),
    re_path(r"", NoSuchSocket.as_asgi()),
]
