"""What the worker is nudged to do. Extra keywords are ignored, so that old and new processes can overlap."""

from celery import shared_task
from django.utils import timezone

from accounts.actors import system_actor
from deployments.services.plans import expire_plans
from deployments.services.runs import execute_run, waiting_runs
from hosts.queue import send


@shared_task(name="deployments.execute_run")
def execute_run_task(*, run_id: int, **_) -> None:
    execute_run(run_id=run_id, now=timezone.now())


@shared_task(name="deployments.nudge_waiting_runs")
def nudge_waiting_runs(**_) -> None:
    """Rows are the queue: runs that wait, and runs whose worker fell silent, are nudged again."""
    for run_id in waiting_runs().values_list("pk", flat=True):
        send("deployments.execute_run", {"run_id": run_id})
    expire_plans(by=system_actor("beat"))
