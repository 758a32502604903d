import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pkgutil, sys
import deployments.planning, hosts.facts
for package in (deployments.planning, hosts.facts):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
import audit.canonical
loaded = {"django", "celery", "channels", "asgiref", "paramiko", "socket", "subprocess"} & set(sys.modules)
print(sorted(loaded), len(sys.modules))
"""


class TestPlanningAndFacts:
    def test_load_no_framework_and_nothing_that_talks_to_the_world(self):
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("[] ")
