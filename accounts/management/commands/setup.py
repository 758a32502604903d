"""`python manage.py setup`: what an installation needs after its first migrate: roles, an environment, an administrator."""

import secrets

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from accounts.services import create_administrator, ensure_shipped_roles


class Command(BaseCommand):
    help = "Puts the shipped roles and a first environment there; with --administrator also a first account. Safe to repeat."

    def add_arguments(self, parser):
        parser.add_argument("--administrator", metavar="NAME", help="make this account; its password is printed once")

    def handle(self, *, administrator, **options):
        ensure_shipped_roles()
        self.stdout.write("Roles and environments are there.")
        if administrator is None:
            return
        if get_user_model().objects.filter(username=administrator).exists():
            raise CommandError(f"There is an account {administrator} already.")
        password = secrets.token_urlsafe(12)
        create_administrator(username=administrator, password=password)
        self.stdout.write(f"Sign in as {administrator} with the password {password} (shown only now).")
