"""What the worker is nudged to do. Extra keywords are ignored, so that old and new processes can overlap."""

from celery import shared_task
from django.db.models import Q
from django.utils import timezone

from hosts.enrolment import work_on_host
from hosts.models import Host
from hosts.queue import send


@shared_task(name="hosts.work_on_host")
def work_on_host_task(*, host_id: int, **_) -> None:
    work_on_host(host_id=host_id, now=timezone.now())


@shared_task(name="hosts.nudge_waiting_jobs")
def nudge_waiting_jobs(**_) -> None:
    """Rows are the queue: whatever waits unclaimed is nudged again."""
    now = timezone.now()
    waiting = Host.objects.filter(asked_at__isnull=False).filter(
        Q(claimed_until__isnull=True) | Q(claimed_until__lt=now)
    )
    for host_id in waiting.values_list("pk", flat=True):
        send("hosts.work_on_host", {"host_id": host_id})
