"""Hosts that each have one thing wrong with them, and what "nothing half started" means."""

import json

import pytest
from django.core.management import call_command

from deployments.models import Launch, PortReservation, Reservation
from deployments.planning.states import LAUNCH_TERMINAL
from simulator.fleet import simulated_fleet
from simulator.spec import HostSpec
from tests import people
from tests.addresses import loopback_network
from tests.fleet.conftest import _tasks, credential, enrol, environment, propose  # noqa: F401

MIB = 1 << 20
HOSTS = (
    HostSpec(name="gpu-a", gpus=("L4", "L4"), password="letmein"),
    HostSpec(name="no-vllm", gpus=("L4",), installations=()),
    HostSpec(name="full", gpus=("L4",), disk_free=MIB),
    HostSpec(name="nfs", gpus=("L4",), filesystem="nfs4"),
    HostSpec(name="old", gpus=("L4",), old_python="3.6.8"),
    HostSpec(name="none", python=False, installations=(), models=()),
    HostSpec(name="clone", gpus=("L4",), machine_id="0" * 31 + "1"),
    HostSpec(name="clone-of-it", gpus=("L4",), machine_id="0" * 31 + "1"),
    HostSpec(name="logout", gpus=("L4",), session={"kill_user_processes": True, "linger": False, "remove_ipc": False}),
)


@pytest.fixture
def fleet(tmp_path):
    with simulated_fleet(tmp_path / "fleet", hosts=HOSTS, speed=150, network=loopback_network()) as running:
        yield running


@pytest.fixture
def fleet_command(capsys):
    """`manage.py fleet … --json`: its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, dict]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            call_command("fleet", *arguments, "--json")
        return ended.value.code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def nothing_half_started(fleet):
    """Asserts it of the rows, and of a host's processes and files."""

    def check(name: str) -> None:
        assert not PortReservation.objects.filter(until__isnull=True).exists()
        assert not Reservation.objects.filter(until__isnull=True).exists()
        assert not Launch.objects.exclude(state__in=[state.value for state in LAUNCH_TERMINAL]).exists()
        simulated = fleet[name]
        titles = [process.title for process in simulated.machine]
        assert not [title for title in titles if "vllm" in title.lower() or "supervise" in title]
        assert launch_files(simulated) == []

    return check


def launch_files(simulated) -> list[str]:
    """What a launch leaves on a host: its directory, its log. The agent itself and the fence of a slot may be there."""
    home = simulated.layout.home
    found = [*home.glob(".fleetadmin/*/*/launches/*"), *home.glob(".fleetadmin/logs/**/*.log")]
    return [str(path.relative_to(home)) for path in found]


def is_clear(problem: dict, code: str) -> None:
    """One sentence, a stable code, and what to do."""
    assert problem["code"] == code, problem
    for text in (problem["message"], problem["next_step"]):
        assert text.strip().endswith((".", ")", "?")), text
        assert "Traceback" not in text
        assert "\x00" not in text
        assert len(text) < 1500


@pytest.fixture
def signed_in(client, environment):  # noqa: F811
    """A browser with an administrator's session."""
    client.force_login(people.administrator())
    return client
