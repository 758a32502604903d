"""Hosts with real OpenSSH for the tests of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hosts.ssh.endpoint import Endpoint, HostKey, KeyAuth, Limits
from hosts.ssh.paramiko_runner import ParamikoRunner, connect
from rig.hosts import RigHost, hosts, why_impossible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICK = Limits(connect=3.0, banner=3.0, auth=5.0, channel=5.0)


def endpoint_of(host: RigHost, **changes: object) -> Endpoint:
    base = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "host_key": HostKey.parse(host.host_key),
        "auth": KeyAuth(host.private_key),
    }
    return Endpoint(**{**base, **changes})


def find_pythons() -> dict[str, Path]:
    """Installations of other Pythons on this machine, as `3.8` → folder, that a host can be given."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for folder in sorted(root.glob("3.*")) if root.is_dir() else []:
        version = ".".join(folder.name.split(".")[:2])
        if (folder / "bin" / f"python{version}").exists():
            found[version] = folder
    return found


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    missing = why_impossible()
    if missing is not None:
        pytest.skip(missing)


@pytest.fixture(scope="module")
def host() -> Iterator[RigHost]:
    folders = [str(folder) for folder in find_pythons().values()]
    with hosts(1, mounts=folders) as rig:
        yield rig[0]


@pytest.fixture
def runner(host: RigHost) -> Iterator[ParamikoRunner]:
    runner = connect(endpoint_of(host), limits=QUICK)
    yield runner
    runner.close()


@pytest.fixture
def interpreter() -> Callable[[str], str]:
    """Give the path of a Python of that version on the host; skips where this machine has none."""

    def find(version: str) -> str:
        folder = find_pythons().get(version)
        if folder is None:
            pytest.skip(f"Python {version} is not installed (pyenv install {version})")
        return str(folder / "bin" / f"python{version}")

    return find


OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
