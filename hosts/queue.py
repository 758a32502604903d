"""Nudges to the worker, by name and after the commit. A lost one costs ten seconds: beat looks for waiting rows."""

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def nudge(task: str, **arguments) -> None:
    transaction.on_commit(lambda: send(task, arguments), robust=True)


def send(task: str, arguments: dict) -> None:
    try:
        current_app.signature(task, kwargs=arguments).apply_async()
    except (OperationalError, OSError) as error:
        log.warning("No nudge for %s: %s", task, error)


def work_on_host(host_id: int) -> None:
    nudge("hosts.work_on_host", host_id=host_id)
