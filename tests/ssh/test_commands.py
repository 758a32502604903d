"""What runs on an open connection: results, bounds, time-outs, channels, files."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hosts.ssh.command import Command
from hosts.ssh.errors import ChannelRefused, ConnectionLost, SshError, TimedOut, WriteRefused
from hosts.ssh.fake import reply
from hosts.ssh.files import WRITE_FILE, put_file
from hosts.ssh.paramiko_runner import ParamikoRunner, connect
from tests.ssh.conftest import QUICK, Server, make_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def runner(server: Server) -> Iterator[ParamikoRunner]:
    runner = connect(server.endpoint(), limits=QUICK)
    yield runner
    runner.close()


def sh(script: str, *args: str, **options) -> Command:
    return Command(argv=("/bin/sh", "-c", script, "sh", *args), **options)


class TestRun:
    def test_gives_status_and_both_outputs(self, runner):
        result = runner.run(sh("echo out; echo err >&2; exit 3"))
        assert (result.exit_status, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert not result.ok

    @pytest.mark.parametrize("word", ["a b", "$HOME", "`id`", "it's", '"', "*", "a\nb", "--", "ü", ";exit 9"])
    def test_passes_every_argument_as_written(self, runner, word):
        result = runner.run(Command(argv=("printf", "%s", word)))
        assert result.stdout.decode() == word

    def test_feeds_stdin_and_closes_it(self, runner):
        content = os.urandom(3_000_000)
        result = runner.run(sh("sha256sum", stdin=content))
        assert result.text.split()[0] == hashlib.sha256(content).hexdigest()

    def test_does_not_hang_when_both_outputs_exceed_the_window(self, runner):
        script = "head -c 4000000 /dev/zero >&2; head -c 4000000 /dev/zero; cat >/dev/null"
        result = runner.run(sh(script, stdin=b"x" * 3_000_000))
        assert (len(result.stdout), len(result.stderr)) == (4_000_000, 4_000_000)

    def test_bounds_what_it_keeps(self, server):
        runner = connect(server.endpoint(), limits=replace(QUICK, max_output=1000))
        result = runner.run(sh("head -c 50000 /dev/zero"))
        runner.close()
        assert (len(result.stdout), result.truncated, result.exit_status) == (1000, True, 0)

    def test_does_not_hang_when_stdin_is_not_read(self, runner):
        assert runner.run(sh("exit 4", stdin=b"x" * 5_000_000)).exit_status == 4

    def test_has_no_status_when_a_signal_ended_it(self, runner):
        assert runner.run(sh("kill -KILL $$")).exit_status is None

    def test_gives_up_in_time(self, runner):
        started = time.monotonic()
        with pytest.raises(TimedOut) as caught:
            runner.run(sh("sleep 2", timeout=0.3))
        assert caught.value.code == "COMMAND_TIMEOUT"
        assert not caught.value.transient
        assert time.monotonic() - started < 1.5

    def test_replaces_what_is_no_text(self, runner):
        assert runner.run(sh(r"printf 'a\000\377b'")).text == "a\ufffd\ufffdb"

    def test_runs_from_several_threads_at_once(self, runner):
        answers: list[str] = []

        def ask(number: int) -> None:
            answers.append(runner.run(sh("sleep 0.1; echo $1", str(number))).text)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(int(text) for text in answers) == list(range(12))


class TestChannels:
    def test_talks_both_ways(self, runner):
        channel = runner.open(Command(argv=("cat",)))
        channel.send(b"one\n")
        assert channel.receive(5) == b"one\n"
        channel.close()

    def test_ends_with_empty_bytes_and_keeps_stderr(self, runner):
        channel = runner.open(sh("echo gone >&2; echo last"))
        pieces = [channel.receive(5), channel.receive(5)]
        assert pieces == [b"last\n", b""]
        assert channel.read_errors() == b"gone\n"
        channel.close()

    def test_tells_silence_from_the_end(self, runner):
        channel = runner.open(Command(argv=("cat",)))
        with pytest.raises(TimedOut) as caught:
            channel.receive(0.2)
        assert caught.value.code == "NOTHING_RECEIVED"
        channel.close()

    def test_are_at_most_as_many_as_the_limit(self, server):
        runner = connect(server.endpoint(), limits=replace(QUICK, max_channels=2, channel=0.3))
        channels = [runner.open(Command(argv=("cat",))) for _ in range(2)]
        with pytest.raises(ChannelRefused) as caught:
            runner.open(Command(argv=("cat",)))
        assert (caught.value.code, caught.value.transient) == ("CHANNELS_BUSY", True)
        channels[0].close()
        channels[0].close()
        runner.open(Command(argv=("cat",))).close()
        runner.close()


class TestPut:
    def test_writes_whole_with_the_mode(self, runner, tmp_path: Path):
        content = os.urandom(400_000)
        runner.put(str(tmp_path / "it's here"), content, 0o640)
        assert (tmp_path / "it's here").read_bytes() == content
        assert (tmp_path / "it's here").stat().st_mode & 0o777 == 0o640
        assert len(list(tmp_path.iterdir())) == 1

    def test_replaces_what_was_there(self, runner, tmp_path: Path):
        for content in (b"old", b"", b"new"):
            runner.put(str(tmp_path / "f"), content, 0o600)
        assert (tmp_path / "f").read_bytes() == b"new"

    def test_is_refused_where_it_cannot_write(self, runner, tmp_path: Path):
        with pytest.raises(WriteRefused) as caught:
            runner.put(str(tmp_path / "absent" / "f"), b"x", 0o600)
        assert caught.value.code == "WRITE_REFUSED"

    def test_names_a_full_disk(self):
        said = reply(stderr="cat: write error: No space left on device\n", exit_status=1)  # GNU coreutils 9.1
        with pytest.raises(WriteRefused) as caught:
            put_file(lambda _: said, address="h", path="/home/f", content=b"abc", mode=0o600)
        assert caught.value.code == "DISK_FULL"

    def test_leaves_the_old_file_when_the_content_is_cut(self, runner, tmp_path: Path):
        (tmp_path / "f").write_bytes(b"old")
        result = runner.run(sh(WRITE_FILE, str(tmp_path / "f"), "600", "10", stdin=b"short"))
        assert result.exit_status == 1
        assert (tmp_path / "f").read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 1


class TestLostConnection:
    def test_is_told_to_everybody_who_waits(self):
        server = Server(make_key(), make_key())
        runner = connect(server.endpoint(), limits=QUICK)
        channel = runner.open(Command(argv=("cat",)))
        errors: list[SshError] = []

        def wait(action) -> None:
            try:
                action()
            except SshError as error:
                errors.append(error)

        waiting = [
            threading.Thread(target=wait, args=(lambda: runner.run(sh("sleep 20")),)),
            threading.Thread(target=wait, args=(lambda: channel.receive(20),)),
        ]
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        server.drop_everyone()
        for thread in waiting:
            thread.join(5)
        server.close()
        assert [type(error) for error in errors] == [ConnectionLost, ConnectionLost]
        with pytest.raises(ConnectionLost):
            runner.run(sh("true"))
        assert not runner.alive
