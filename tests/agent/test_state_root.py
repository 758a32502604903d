from __future__ import annotations

import os
from pathlib import Path

import pytest

from hosts.agent.linux import LinuxSystem
from tests.agent.conftest import Opener

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


class OnNetworkDisk(LinuxSystem):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def filesystem(self, path: str) -> tuple[str, int, int]:
        return self.kind, 1 << 40, 1 << 40


class TestStateRoot:
    def test_is_made_private(self, open_agent: Opener, state_root: Path) -> None:
        open_agent().ask("observe")
        assert state_root.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o077 == 0 for path in state_root.rglob("*"))

    def test_is_closed_to_others_where_it_was_open(self, open_agent: Opener, state_root: Path) -> None:
        state_root.mkdir(mode=0o755)
        open_agent().ask("observe")
        assert state_root.stat().st_mode & 0o777 == 0o700

    def test_takes_logs_elsewhere(self, open_agent: Opener, tmp_path: Path) -> None:
        agent = open_agent(log_root=tmp_path / "logs")
        argv = ["/bin/echo", "hello"]
        started = agent.ask("launch", launch_id=f"E-{os.getpid()}", instance="i", slot="s", argv=argv)
        assert started["log_path"] == str(tmp_path / "logs" / "i" / f"E-{os.getpid()}.log")
        agent.finish(agent.begin("tail", launch_id=started["launch_id"]))
        assert Path(started["log_path"]).read_text() == "hello\n"


class TestStateRootRefuses:
    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "fuse"])
    def test_a_disk_that_is_not_local(self, open_agent: Opener, state_root: Path, kind: str) -> None:
        refusal = open_agent(OnNetworkDisk(kind)).refused("observe")
        assert (refusal["code"], refusal["numbers"]["filesystem"]) == ("STATE_ROOT_NOT_LOCAL", kind)
        assert not state_root.exists()

    def test_a_link(self, open_agent: Opener, state_root: Path, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        state_root.symlink_to(tmp_path / "real")
        assert open_agent().refused("observe")["code"] == "STATE_ROOT_LINKED"

    def test_a_link_on_the_way(self, open_agent: Opener, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "alias").symlink_to(tmp_path / "real")
        refusal = open_agent(root=tmp_path / "alias" / "state").refused("observe")
        assert refusal["code"] == "STATE_ROOT_LINKED"
        assert str(tmp_path / "real" / "state") in refusal["next_step"]
        assert list((tmp_path / "real").iterdir()) == []

    @needs_root
    def test_one_of_another_owner(self, open_agent: Opener, state_root: Path) -> None:
        state_root.mkdir()
        os.chown(state_root, 12345, 12345)
        refusal = open_agent().refused("observe")
        assert (refusal["code"], refusal["numbers"]["owner"]) == ("STATE_ROOT_NOT_OURS", 12345)

    @pytest.mark.parametrize("path", ["relative/state", "/tmp/../tmp/state"])
    def test_a_path_that_is_not_plain(self, open_agent: Opener, path: str) -> None:
        assert open_agent(root=path).refused("observe")["code"] == "STATE_ROOT_NOT_ABSOLUTE"  # type: ignore[arg-type]

    def test_a_file(self, open_agent: Opener, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert open_agent(root=tmp_path / "file").refused("observe")["code"] == "STATE_ROOT_NOT_OURS"
        assert open_agent(root=tmp_path / "file" / "x").refused("observe")["code"] == "STATE_ROOT_NOT_WRITABLE"

    def test_in_the_facts_before_anything_is_launched(self, open_agent: Opener) -> None:
        found = open_agent(OnNetworkDisk("nfs")).ask("facts")
        assert found["state_root"]["refusal"]["code"] == "STATE_ROOT_NOT_LOCAL"
