"""Wiring: knows everyone; nobody knows it."""

from fleetadmin.celery import app as celery_app

__all__ = ["celery_app"]
