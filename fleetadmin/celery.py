"""The Celery application. A message is a nudge: the row it points to is the queue."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleetadmin.settings.local")

app = Celery("fleetadmin")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = {
    "nudge-waiting-runs": {"task": "deployments.nudge_waiting_runs", "schedule": 10.0},
    "nudge-waiting-enrolments": {"task": "hosts.nudge_waiting_jobs", "schedule": 10.0},
}
