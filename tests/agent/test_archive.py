"""The archive on every interpreter that can be found.

Those are python3.8 … python3.13 on PATH, those that pyenv has, and those that FLEETADMIN_TEST_PYTHONS names
(paths, separated by colons).
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from hosts.agent_archive import build_archive
from tests.agent.channel import open_process, wait_gone

VERSIONS = [f"3.{minor}" for minor in range(8, 14)]


def find_interpreters() -> dict[str, str]:
    """{version: path} of those that really run. A name on PATH may be a shim without anything behind it."""
    named = [path for path in os.environ.get("FLEETADMIN_TEST_PYTHONS", "").split(":") if path]
    on_path = [path for path in (shutil.which(f"python{version}") for version in VERSIONS) if path]
    found: dict[str, str] = {}
    for path in [*named, *on_path, *find_in_pyenv()]:
        version = read_output([path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        if version:
            found.setdefault(version, path)
    return found


def find_in_pyenv() -> list[str]:
    if shutil.which("pyenv") is None:
        return []
    installed = [
        name for name in read_output(["pyenv", "versions", "--bare"]).split() if name.startswith(tuple(VERSIONS))
    ]
    paths = [read_output(["pyenv", "which", "python"], PYENV_VERSION=name) for name in installed]
    return [path for path in paths if path]


def read_output(command: list[str], **variables: str) -> str:
    """What the command prints; nothing where it fails."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout.strip() if done.returncode == 0 else ""


INTERPRETERS = find_interpreters()


class TestArchive:
    def test_is_the_same_for_the_same_sources(self) -> None:
        first = build_archive()
        build_archive.cache_clear()
        second = build_archive()
        assert first == second
        assert first.name == f"agent-{first.digest}.pyz"
        assert len(first.digest) == 16

    def test_holds_the_agent_and_pynvml_and_nothing_else_of_ours(self) -> None:
        with zipfile.ZipFile(io.BytesIO(build_archive().content)) as archive:
            names = archive.namelist()
        assert names == sorted(names)
        assert {"__main__.py", "pynvml.py", "agent/server.py"} <= set(names)
        assert all(name.startswith("agent/") for name in names if name not in ("__main__.py", "pynvml.py"))

    @pytest.mark.parametrize("version", VERSIONS)
    def test_runs_on_python(self, version: str, tmp_path: Path, state_root: Path) -> None:
        if version not in INTERPRETERS:
            pytest.skip(f"no Python {version}: name one in FLEETADMIN_TEST_PYTHONS")
        archive = build_archive()
        path = tmp_path / archive.name
        path.write_bytes(archive.content)
        options = ["serve", "--controller", "c1", "--state-root", str(state_root)]
        channel, process = open_process([INTERPRETERS[version], "-W", "error", str(path), *options])
        assert channel.hello["agent"] == archive.digest
        assert channel.hello["python"].startswith(version + ".")
        assert channel.ask("facts")["gpus"]["source"] in ("nvml", "nvidia-smi", "none")
        launch_id = f"A{version}-{os.getpid()}"
        started = channel.launch(launch_id)
        path.unlink()  # an archive may be replaced while a launch runs
        channel.wait_tree(launch_id)
        assert channel.ask("stop", launch_id=launch_id)["exit_code"] == 0
        wait_gone(started["pid"])
        channel.close_stdin()
        assert process.wait(10) == 0
