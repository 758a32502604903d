"""The wire against real OpenSSH: connect, run, and every way it can fail there."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts.ssh.command import Command
from hosts.ssh.endpoint import HostKey, KeyAuth, PasswordAuth
from hosts.ssh.errors import ConnectionLost, SshError, WriteRefused
from hosts.ssh.paramiko_runner import connect, read_host_key
from hosts.ssh.retry import call_with_retry
from rig.hosts import hosts, make_key_pair
from rig.network import take_slot
from tests.rig.conftest import QUICK, endpoint_of

pytestmark = pytest.mark.real
OTHER_KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIEq1fVjPpyAvKZ2UAgRTuMdsSNNkC1JyGnnQXW3GbR4e")


def fail(endpoint, limits=QUICK) -> SshError:
    with pytest.raises(SshError) as caught:
        connect(endpoint, limits=limits)
    return caught.value


class TestConnection:
    def test_runs_as_the_unprivileged_account(self, runner):
        result = runner.run(Command(argv=("id", "-un")))
        assert (result.exit_status, result.text) == (0, "fleet\n")

    def test_passes_arguments_through_the_login_shell_as_written(self, runner):
        word = 'it\'s $HOME `id` "x" *\n;exit 9'
        assert runner.run(Command(argv=("printf", "%s", word))).text == word

    def test_writes_files_without_sftp(self, runner, host):
        runner.put("/home/fleet/some file", b"x" * 1_000_000, 0o600)
        assert host.run(["stat", "-c", "%s %a %U", "/home/fleet/some file"]) == "1000000 600 fleet\n"

    def test_names_what_a_signal_ended(self, runner):
        assert runner.run(Command(argv=("/bin/sh", "-c", "kill -KILL $$"))).exit_status is None

    def test_host_key_is_read_without_an_account(self, host):
        assert read_host_key(host.address, host.port, limits=QUICK) == HostKey.parse(host.host_key)


class TestRefusals:
    def test_wrong_key(self, host, tmp_path):
        error = fail(endpoint_of(host, auth=KeyAuth(make_key_pair(tmp_path / "other"))))
        assert (error.code, error.transient) == ("WRONG_KEY", False)

    def test_wrong_key_where_sshd_hangs_up_at_the_first_refusal(self, tmp_path):
        with hosts(1, sshd=["MaxAuthTries 1"]) as rig:
            error = fail(endpoint_of(rig[0], auth=KeyAuth(make_key_pair(tmp_path / "other"))))
        assert (error.code, error.transient) == ("WRONG_KEY", False)

    def test_unknown_account(self, host):
        assert fail(endpoint_of(host, user="nobody-here")).code == "WRONG_KEY"

    def test_password_where_only_keys_are_allowed(self, host):
        error = fail(endpoint_of(host, auth=PasswordAuth("secret")))
        assert error.code == "AUTH_METHOD_REFUSED"
        assert "publickey" in error.message

    def test_closed_port(self, host):
        assert fail(endpoint_of(host, port=2222)).code == "PORT_CLOSED"

    def test_silent_port(self, host):
        with socket.create_server((host.slot.controller, 0)) as listener:
            error = fail(endpoint_of(host, address=host.slot.controller, port=listener.getsockname()[1]))
        assert error.code == "PORT_SILENT"

    def test_address_without_a_machine(self, host):
        assert fail(endpoint_of(host, address=host.slot.address(12))).code == "HOST_UNREACHABLE"

    def test_changed_host_key_shows_both_and_sends_nothing(self):
        with hosts(1) as rig:
            endpoint = endpoint_of(rig[0])
            old = endpoint.host_key.fingerprint
            rig[0].replace_host_key()
            error = fail(endpoint)
            new = HostKey.parse(rig[0].host_key).fingerprint
            log = rig[0].sshd_log()
        assert (error.code, error.transient) == ("HOST_KEY_CHANGED", False)
        assert old in error.message
        assert new in error.message
        assert "fleet" not in log  # no account was named to the changed machine

    def test_host_key_of_another_kind_counts_as_changed(self):
        with hosts(1, host_key_kind="ecdsa") as rig:
            assert fail(endpoint_of(rig[0], host_key=OTHER_KEY)).code == "HOST_KEY_CHANGED"

    def test_full_disk(self):
        with hosts(1, home_mib=2) as rig:
            runner = connect(endpoint_of(rig[0]), limits=QUICK)
            with pytest.raises(WriteRefused) as caught:
                runner.put("/home/fleet/big", b"x" * 4_000_000, 0o600)
            left = rig[0].run(["ls", "-A", "/home/fleet"])
            runner.close()
        assert caught.value.code == "DISK_FULL"
        assert left == ""


class TestCrowds:
    def test_too_many_at_once_are_told_so_and_a_retry_brings_all_in(self):
        with hosts(1, sshd=["MaxStartups 2:100:2", "LoginGraceTime 20"]) as rig:
            held = [socket.create_connection((rig[0].address, 22)) for _ in range(2)]
            time.sleep(0.2)
            error = fail(endpoint_of(rig[0]))
            assert (error.code, error.transient) == ("TOO_MANY_CONNECTIONS", True)
            told: list[str] = []

            def on_retry(error: SshError, _seconds: float) -> None:
                told.append(error.code)
                for sock in held:
                    sock.close()

            runner = call_with_retry(lambda: connect(endpoint_of(rig[0]), limits=QUICK), on_retry=on_retry)
            runner.close()
            assert told[0] == "TOO_MANY_CONNECTIONS"

    def test_a_hundred_at_once_meet_no_limit_of_an_sshd_as_it_is_shipped(self):
        with hosts(1) as rig:
            endpoint = endpoint_of(rig[0])
            with ThreadPoolExecutor(100) as pool:
                runners = list(pool.map(lambda _: connect(endpoint, limits=QUICK), range(100)))
            log = rig[0].sshd_log()
            for runner in runners:
                runner.close()
        assert log.count("Accepted publickey") == 100
        assert not [line for line in log.splitlines() if "MaxStartups" in line or "drop connection" in line]

    def test_a_refused_channel_is_told_from_a_lost_connection(self):
        with hosts(1, sshd=["MaxSessions 2"]) as rig:
            runner = connect(endpoint_of(rig[0]), limits=QUICK)
            kept = [runner.open(Command(argv=("cat",))) for _ in range(2)]
            with pytest.raises(SshError) as caught:
                runner.run(Command(argv=("true",)))
            assert caught.value.code == "CHANNEL_REFUSED"
            assert runner.alive
            for channel in kept:
                channel.close()
            runner.close()


class TestCutLink:
    def test_is_noticed_by_everybody_within_25_seconds(self):
        with hosts(1) as rig:
            runner = connect(endpoint_of(rig[0]), limits=QUICK)
            channel = runner.open(Command(argv=("cat",)))
            noticed: dict[str, float] = {}

            def wait(name: str, action) -> None:
                with pytest.raises(ConnectionLost):
                    action()
                noticed[name] = time.monotonic() - cut

            cut = time.monotonic()
            sleep = Command(argv=("sleep", "60"), timeout=90)
            threads = [
                threading.Thread(target=wait, args=("run", lambda: runner.run(sleep))),
                threading.Thread(target=wait, args=("receive", lambda: channel.receive(90))),
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.3)
            rig[0].cut_link()
            cut = time.monotonic()
            for thread in threads:
                thread.join(40)
            assert sorted(noticed) == ["receive", "run"]
            assert max(noticed.values()) < 25
            assert not runner.alive
            rig[0].restore_link()
            connect(endpoint_of(rig[0]), limits=QUICK).close()


class TestRig:
    def test_hosts_are_apart_from_each_other_and_from_this_machine(self):
        with hosts(2) as rig:
            first, second = rig
            script = "sleep 50 >/dev/null 2>&1 & echo x >/dev/shm/mark; echo y >/tmp/mark"
            first.run(["/bin/sh", "-c", script])
            assert "sleep 50" in [row.title for row in first.processes()]
            assert "sleep 50" not in [row.title for row in second.processes()]
            assert (first.shm(), second.shm()) == (["mark"], [])
            assert first.machine_id != second.machine_id
            assert first.run(["cat", "/etc/machine-id"]).strip() == first.machine_id
            assert first.run(["hostname"]) != second.run(["hostname"])

    def test_reboot_ends_everything_and_changes_the_boot_id(self):
        with hosts(1) as rig:
            before = rig[0].boot_id
            rig[0].run(["/bin/sh", "-c", "sleep 50 >/dev/null 2>&1 & echo x >/home/fleet/kept"])
            rig[0].reboot()
            assert "sleep 50" not in [row.title for row in rig[0].processes()]
            assert rig[0].run(["cat", "/proc/sys/kernel/random/boot_id"]).strip() not in {before, ""}
            assert rig[0].run(["cat", "/home/fleet/kept"]) == "x\n"
            connect(endpoint_of(rig[0]), limits=QUICK).close()

    def test_leaves_nothing(self):
        with hosts(1) as rig:
            outer = [row.outer_pid for row in rig[0].processes()]
            cable, directory = rig[0].switch.cable, rig[0].slot.directory
        assert not [pid for pid in outer if Path(f"/proc/{pid}").exists()]
        assert not Path(f"/sys/class/net/{cable}").exists()
        assert not directory.exists()

    def test_leaves_no_process_when_it_is_killed(self, tmp_path):
        code = (
            "import time\nfrom rig.hosts import hosts\n"
            "with hosts(1) as rig:\n"
            "    switch = rig[0].switch\n"
            "    print(rig[0].processes()[0].outer_pid, switch.holder.pid, switch.cable, flush=True)\n"
            "    time.sleep(60)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        sshd, switch, cable = child.stdout.readline().split()
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
        until = time.monotonic() + 10
        leftovers = [Path(f"/proc/{sshd}"), Path(f"/proc/{switch}"), Path(f"/sys/class/net/{cable}")]
        while any(path.exists() for path in leftovers) and time.monotonic() < until:
            time.sleep(0.05)
        assert [path for path in leftovers if path.exists()] == []
        take_slot().release()
