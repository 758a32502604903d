"""The watcher: one process holds the `watch` channel of each host it leases, and writes what the host tells."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import close_old_connections, transaction
from django.db.models import Q
from django.utils import timezone

from deployments.log_store import Misfit, append_log
from deployments.models import LogStream
from deployments.planning.states import LAUNCH_TERMINAL
from deployments.services.adopting import adopt_running
from deployments.services.observing import apply_observation, still_as_seen
from deployments.services.runs import OWNER
from hosts import queue
from hosts.agent_session import AgentRefused, AgentSession
from hosts.connections import connections, controller_id
from hosts.facts.model import CPU_DEVICE
from hosts.live import announce
from hosts.models import Host, HostWatch, Sample
from hosts.problems import problem_of
from hosts.queries import latest_facts
from hosts.services import keep_uses
from hosts.ssh.errors import SshError
from hosts.ssh.retry import LONGEST_WAIT_S, wait_before_retry
from hosts.vault import VaultClosed

log = logging.getLogger(__name__)
LEASE_SECONDS = 30
FACTS_SECONDS = 200
SAMPLES_KEPT_SECONDS = 24 * 3600


class Watcher:
    """Leases hosts and runs one thread for each; `run` returns when `stop` is set."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.threads: dict[int, threading.Thread] = {}

    def run(self) -> None:
        while not self.stop.is_set():
            close_old_connections()
            for host_id in self.due():
                thread = threading.Thread(target=self.watch_host, args=(host_id,), name=f"watch-{host_id}", daemon=True)
                self.threads[host_id] = thread
                thread.start()
            self.stop.wait(2)

    def due(self) -> list[int]:
        """Enrolled hosts that no live watcher holds and that this one does not watch already."""
        now = timezone.now()
        held = HostWatch.objects.filter(until__gt=now).exclude(owner=OWNER).values("host_id")
        mine = [host_id for host_id, thread in self.threads.items() if thread.is_alive()]
        waiting = HostWatch.objects.filter(waits_for_person=True).values("host_id")
        hosts = Host.objects.filter(state=Host.State.ENROLLED).exclude(pk__in=[*mine])
        hosts = hosts.exclude(pk__in=held).exclude(pk__in=waiting)
        return list(hosts.values_list("pk", flat=True))

    def watch_host(self, host_id: int) -> None:
        """Watch until somebody else holds the host, it is gone, or only a person can help; else again, later and later."""
        failures = 0
        try:
            while not self.stop.is_set() and lease(host_id):
                began = time.monotonic()
                try:
                    HostWatching(host_id, stop=self.stop).run()
                    failures = 0
                except (SshError, AgentRefused, VaultClosed) as error:
                    # Only a watch that lasted ends a row of failures: a host may let in and hang up at once.
                    failures = 1 if time.monotonic() - began > LONGEST_WAIT_S else failures + 1
                    wait = wait_before_retry(error.code, failures=failures, jitter=random.random)
                    mark_unheard(host_id, error, wait=wait)
                    if wait is None:
                        return
                    self.stop.wait(wait)
        except Exception:
            log.exception("Watching host %s ended", host_id)
        finally:
            close_old_connections()


MOST_OTHERS = 200


class HostWatching:
    """One connection's worth of watching one host."""

    def __init__(self, host_id: int, *, stop: threading.Event) -> None:
        self.host = Host.objects.select_related("credential").get(pk=host_id)
        self.stop = stop
        self.controller = controller_id()
        self.leased_at = timezone.now()
        self.asked_for_facts_at = None
        self.views: list[Mapping[str, Any]] | None = None

    def run(self) -> None:
        """Raises SshError or AgentRefused when the host cannot be heard any more."""
        with connections.session(self.host) as session:
            if session.machine_id != self.host.machine_id:
                raise AgentRefused(
                    code="MACHINE_CHANGED",
                    message="Another machine answers at this address than was enrolled.",
                    next_step="Check the address; if the machine was replaced, enrol it anew.",
                )
            mark_heard(self.host)
            stream = session.stream(
                "watch", {"interval_s": settings.WATCH_INTERVAL_SECONDS, "logs": log_offsets(self.host)}
            )
            try:
                for event in stream.ticks(1.0):
                    if self.stop.is_set() or not self.still_leased():
                        return
                    self.refresh_facts()
                    if event is not None:
                        self.take(event, session)
            finally:
                stream.cancel()

    def still_leased(self) -> bool:
        now = timezone.now()
        if (now - self.leased_at).total_seconds() < LEASE_SECONDS / 3:
            return True
        self.leased_at = now
        return lease(self.host.pk) and Host.objects.filter(pk=self.host.pk, state=Host.State.ENROLLED).exists()

    def refresh_facts(self) -> None:
        """Plans need facts that are fresh: ask for them before they are too old."""
        now = timezone.now()
        if self.asked_for_facts_at is None:
            newest = latest_facts(self.host)
            self.asked_for_facts_at = newest.taken_at if newest else now
        if (now - self.asked_for_facts_at).total_seconds() < FACTS_SECONDS:
            return
        self.asked_for_facts_at = now
        with transaction.atomic():
            Host.objects.filter(pk=self.host.pk, asked_at__isnull=True).update(asked_at=now)
            queue.work_on_host(self.host.pk)

    def take(self, event: Mapping[str, Any], session: AgentSession) -> None:
        now = timezone.now()
        if "launches" in event:
            self.views = event["launches"]
            self.keep_others(event["launches"])
            for view in event["launches"]:
                if view["controller"] == self.controller and view["state"] in ("exited", "orphaned"):
                    self.read_rest_of_log(view["launch_id"], session)
            self.judge(session, fresh=True)
        if "sample" in event:
            keep_sample(self.host, event["sample"], now=now)
            self.see_again(event["sample"], session)
        if "log" in event:
            try:
                self.keep_log(event["log"]["launch_id"], event["log"])
            except Misfit:
                self.read_rest_of_log(event["log"]["launch_id"], session)

    def keep_others(self, views: list[Mapping[str, Any]]) -> None:
        """Launches of other controllers are shown, and nothing more is done with them."""
        alive = ("starting", "running", "orphaned")
        others = [
            {name: view.get(name) for name in ("controller", "instance", "state", "port")}
            for view in views
            if view["controller"] != self.controller and view["state"] in alive
        ]
        HostWatch.objects.filter(host=self.host).update(others=others[:MOST_OTHERS])

    def see_again(self, sample: Mapping[str, Any], session: AgentSession) -> None:
        """A sample without news of launches says that those seen last are as they were; before a first look, nothing."""
        if self.views is None:
            return
        living = {
            view["launch_id"]
            for view in self.views
            if view["controller"] == self.controller and view["state"] in ("starting", "running", "orphaned")
        }
        still_as_seen(launch_ids=living, sample=sample, now=timezone.now())
        self.judge(session, fresh=False)

    def judge(self, session: AgentSession, *, fresh: bool) -> None:
        """Compare what was seen last with what is believed; before the first look there is nothing to compare."""
        if self.views is None:
            return
        now = timezone.now()
        apply_observation(
            host=self.host,
            boot_id=session.boot_id,
            views=self.views,
            controller=self.controller,
            now=now,
            fresh=fresh,
        )
        adopt_running(host=self.host, views=self.views, session=session, now=now)

    def read_rest_of_log(self, launch_id: str, session: AgentSession) -> None:
        """An end is judged by its log, so all of it has to be here first."""
        stream = LogStream.objects.filter(
            launch_id=launch_id, launch__host=self.host, launch__ended_at__isnull=True
        ).first()
        if stream is None:
            return
        pieces = session.stream("tail", {"launch_id": launch_id, "offset": stream.next_offset, "follow": False})
        with contextlib.suppress(Misfit):
            for piece in pieces:
                self.keep_log(launch_id, piece)

    def keep_log(self, launch_id: str, piece: Mapping[str, Any]) -> None:
        if not LogStream.objects.filter(launch_id=launch_id, launch__host=self.host).exists():
            return
        append_log(
            launch_id=launch_id,
            offset=piece["offset"],
            next_offset=piece["next"],
            text=piece["text"],
            now=timezone.now(),
        )


def lease(host_id: int) -> bool:
    """Take or renew the watch of a host by compare-and-swap.

    False when another watcher holds it, or when it waits for a person.
    """
    now = timezone.now()
    HostWatch.objects.get_or_create(host_id=host_id)
    free = Q(until__isnull=True) | Q(until__lt=now) | Q(owner=OWNER)
    return bool(
        HostWatch.objects.filter(free, host_id=host_id, waits_for_person=False).update(
            owner=OWNER, until=now + timedelta(seconds=LEASE_SECONDS)
        )
    )


def log_offsets(host: Host) -> dict[str, int]:
    """Where each live launch's stored log ends."""
    streams = LogStream.objects.filter(launch__host=host).exclude(
        launch__state__in=[state.value for state in LAUNCH_TERMINAL]
    )
    return {str(launch_id): offset for launch_id, offset in streams.values_list("launch_id", "next_offset")}


def mark_heard(host: Host) -> None:
    now = timezone.now()
    with transaction.atomic():
        HostWatch.objects.filter(host=host).exclude(reachable=True).update(reachable=True, since=now, problem=None)
        Host.objects.filter(pk=host.pk).update(last_seen_at=now)
        announce("fleet", f"host.{host.pk}")


def mark_unheard(host_id: int, error, *, wait: float | None) -> None:
    """Not heard is not down: the belief about its instances stays, with its age.

    `wait` is seconds until the next attempt: the host is held as long, or another watcher would begin its own row of
    attempts. None: it is let go and left alone until a person has acted.
    """
    now = timezone.now()
    with transaction.atomic():
        watch = HostWatch.objects.select_for_update().get(host_id=host_id)
        since = watch.since if watch.reachable is False else now
        HostWatch.objects.filter(pk=watch.pk).update(
            reachable=False,
            since=since,
            problem=problem_of(error),
            waits_for_person=wait is None,
            until=None if wait is None else now + timedelta(seconds=LEASE_SECONDS + wait),
        )
        announce("fleet", f"host.{host_id}")


def memory_as_device(sample: Mapping[str, Any]) -> dict[str, Any]:
    """RAM, as the one device of a host without accelerators has it."""
    total, available = sample["memory"]["total"], sample["memory"]["available"]
    used = None if total is None or available is None else total - available
    return {"uuid": CPU_DEVICE, "total": total, "used": used, "free": available, "processes": []}


def keep_sample(host: Host, sample: Mapping[str, Any], *, now) -> None:
    with transaction.atomic():
        Sample.objects.create(host=host, at=now, body=dict(sample))
        Host.objects.filter(pk=host.pk).update(last_seen_at=now)
        keep_uses(host_id=host.pk, uses=[*sample.get("devices", []), memory_as_device(sample)], now=now)
        Sample.objects.filter(host=host, at__lt=now - timedelta(seconds=SAMPLES_KEPT_SECONDS)).delete()
        announce("fleet", f"host.{host.pk}")
