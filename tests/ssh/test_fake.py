"""The scripted runner says what was scripted and nothing else."""

from __future__ import annotations

import pytest

from hosts.ssh.command import Command
from hosts.ssh.errors import TimedOut
from hosts.ssh.fake import FakeChannel, FakeRunner, UnscriptedCommandError, reply


class TestFakeRunner:
    def test_answers_the_longest_scripted_prefix(self):
        runner = FakeRunner({("ls",): reply("any"), ("ls", "-l"): reply("long")})
        assert runner.run(Command(("ls", "-l", "/tmp"))).text == "long"
        assert runner.run(Command(("ls", "/tmp"))).text == "any"

    def test_records_what_ran_and_what_was_written(self):
        runner = FakeRunner({("true",): reply()})
        runner.run(Command(("true",)))
        runner.put("/f", b"x", 0o600)
        assert [command.argv for command in runner.ran] == [("true",)]
        assert runner.files == {"/f": (b"x", 0o600)}

    def test_raises_on_what_is_not_in_the_script(self):
        with pytest.raises(UnscriptedCommandError):
            FakeRunner().run(Command(("rm", "-rf", "/")))

    def test_raises_scripted_errors(self):
        error = TimedOut("COMMAND_TIMEOUT", program="ls", seconds="1", address="h")
        with pytest.raises(TimedOut):
            FakeRunner({("ls",): error}).run(Command(("ls",)))

    def test_gives_scripted_channels(self):
        channel = FakeChannel(lambda sent: [sent.upper()])
        opened = FakeRunner({("cat",): channel}).open(Command(("cat",)))
        opened.send(b"abc")
        assert opened.receive(1) == b"ABC"


class TestCommand:
    def test_refuses_what_no_shell_can_carry(self):
        for argv in ((), ("",), ("a\0b",)):
            with pytest.raises(ValueError):
                Command(argv)

    def test_shows_no_stdin(self):
        assert "s3cret" not in repr(Command(("cat",), stdin=b"s3cret"))
