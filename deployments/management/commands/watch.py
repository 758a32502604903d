"""`python manage.py watch`: holds the watch channels of the hosts until it is told to end."""

import signal

from django.core.management.base import BaseCommand

from deployments.watching import Watcher


class Command(BaseCommand):
    help = "Watches the hosts: samples, logs, processes. Several watchers share the hosts among them."

    def handle(self, **options):
        watcher = Watcher()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: watcher.stop.set())
        watcher.run()
