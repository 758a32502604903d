"""`python manage.py audit verify`: tells whether the trail is what was written."""

import sys

from django.core.management.base import BaseCommand

from audit.models import Entry
from audit.verify import find_faults


class Command(BaseCommand):
    help = "Checks the audit trail. Exit code 0: whole; 1: faults, each on a line of its own."

    def add_arguments(self, parser):
        parser.add_argument("what", choices=["verify"])

    def handle(self, *, what, **options):
        faults = 0
        for fault in find_faults():
            faults += 1
            self.stdout.write(f"{fault.code} {fault.sentence}")
        if faults:
            sys.exit(1)
        self.stdout.write(f"{Entry.objects.count()} entries, unbroken.")
