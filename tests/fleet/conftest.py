"""A simulated fleet behind real SSH, and the application's own services against it: no browser, no processes of vLLM."""

import time
from pathlib import Path

import pytest
from django.utils import timezone

from accounts.actors import Actor
from accounts.models import Environment
from accounts.services import ensure_shipped_roles
from hosts import services
from hosts.connections import connections
from hosts.models import Host
from simulator.fleet import simulated_fleet
from simulator.spec import PRESETS
from tests.addresses import loopback_network

ANN = Actor(label="ann")


@pytest.fixture(scope="session", autouse=True)
def _tasks():
    """Tasks run eagerly only where they are registered, which a worker does at its start."""
    import deployments.tasks  # noqa: F401
    import hosts.tasks  # noqa: F401


@pytest.fixture
def fleet(tmp_path):
    """Four simulated hosts: two with GPUs, one without, one without Python. Fast: a start takes under a second."""
    with simulated_fleet(tmp_path / "fleet", hosts=PRESETS["demo"], speed=150, network=loopback_network()) as running:
        yield running


@pytest.fixture
def environment(transactional_db, fleet):
    ensure_shipped_roles()
    yield Environment.objects.get(slug="default")
    connections.close_all()


@pytest.fixture
def credential(fleet, environment):
    described = fleet.describe()[0]
    return services.add_key(
        environment=environment,
        name="fleet-key",
        private_key=Path(described["private_key"]).read_text(),
        passphrase="",
        by=ANN,
        now=timezone.now(),
    )


@pytest.fixture
def propose(fleet, credential):
    """Write a host of the fleet down; the worker's first step runs at once (tasks are eager in tests)."""

    def write(name: str, **changes) -> Host:
        described = {item["name"]: item for item in fleet.describe()}[changes.pop("machine", name)]
        values = {
            "environment": credential.environment,
            "name": name,
            "address": described["address"],
            "port": described["port"],
            "user": described["user"],
            "credential": credential,
            "by": ANN,
            "now": timezone.now(),
            "model_roots": described["model_roots"],
            "vllm_roots": described["vllm_roots"],
        }
        host = services.propose_host(**{**values, **changes})
        return Host.objects.get(pk=host.pk)

    return write


@pytest.fixture
def enrol(propose):
    def confirm(name: str, **changes) -> Host:
        host = propose(name, **changes)
        assert host.state == Host.State.KEY_SHOWN, host.problem
        services.confirm_key(host=host, fingerprint=host.host_key_fingerprint, by=ANN, now=timezone.now())
        return Host.objects.get(pk=host.pk)

    return confirm


def eventually(check, *, seconds: float = 15):
    """Wait until `check()` is true; returns what it gave."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found or time.monotonic() > end:
            assert found
            return found
        time.sleep(0.05)
