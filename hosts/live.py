"""Telling pages that something changed: after the commit, and never what. Pages read the truth again by themselves."""

import logging

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


def announce(*topics: str) -> None:
    """Tell everyone who follows these topics, once the transaction has committed.

    Topics: `fleet`, `host.ID`, `deployment.ID`, `run.ID`, `launch.UUID`, `log.UUID`.
    """
    transaction.on_commit(lambda: send(*topics), robust=True)


def send(*topics: str) -> None:
    layer = get_channel_layer()
    try:
        for topic in topics:
            async_to_sync(layer.group_send)(topic, {"type": "topic.changed", "topic": topic})
    except (OSError, RedisError) as error:
        # The row is written; pages that stay open catch up by their own slow refresh.
        log.warning("No announcement of %s: %s", topics, error)
