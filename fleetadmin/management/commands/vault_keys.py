"""`python manage.py vault_keys`: a key pair for the vault, printed once."""

from django.core.management.base import BaseCommand

from hosts.vault import make_pair


class Command(BaseCommand):
    help = "Prints a new key pair. The public half goes to every process, the private one to worker and watcher only."

    def handle(self, **options):
        public, private = make_pair()
        self.stdout.write(f"FLEETADMIN_VAULT_PUBLIC_KEY={public}\nFLEETADMIN_VAULT_PRIVATE_KEY={private}")
