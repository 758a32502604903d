"""The conversation with the agent: answers sorted by id, refusals raised, silence and nonsense survived."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hosts import agent_session, agent_stream
from hosts.agent_archive import AgentArchive, build_archive
from hosts.agent_install import judge_probe, order_interpreters, read_probe
from hosts.agent_lines import LINE_MAX, LineBuffer, read_answer
from hosts.agent_session import AgentRefused, AgentSession, open_session
from hosts.ssh.command import Command, Result
from hosts.ssh.errors import ConnectionLost, TimedOut
from hosts.ssh.fake import FakeChannel, FakeRunner, reply

CONTENT = b"#!/not/really"
ARCHIVE = AgentArchive(content=CONTENT, digest=hashlib.sha256(CONTENT).hexdigest()[:16], name="agent-abc.pyz")
HELLO = {"protocol": [1], "agent": "abc", "machine_id": "m1", "boot_id": "b1"}


def line(request_id: str, kind: str, body: dict | None = None, **more) -> bytes:
    fields = {"v": 1, "id": request_id, "seq": 0, "kind": kind, "body": body or {}, **more}
    return json.dumps(fields).encode() + b"\n"


def probe(**changes) -> Result:
    found = {
        "python": "/usr/bin/python3",
        "version": [3, 11, 2],
        "state_root": "/home/fleet/.fleetadmin",
        "path": "/home/fleet/.fleetadmin/agents/agent-abc.pyz",
        "digest": hashlib.sha256(CONTENT).hexdigest(),
        "link": None,
        "filesystem": "ext4",
        "owner": 1000,
        "uid": 1000,
    }
    return reply("FLEETADMIN " + json.dumps({**found, **changes}) + "\n")


class Peer:
    """The other end of a channel: answers each request by `answer(request)`, a list of lines."""

    def __init__(self, answer=lambda request: [], first: tuple[bytes, ...] = (line("", "hello", HELLO),)) -> None:
        self.asked: list[dict] = []
        self.channel = FakeChannel(self._take, first=first)
        self._answer = answer

    def _take(self, data: bytes) -> list[bytes]:
        request = json.loads(data)
        self.asked.append(request)
        return self._answer(request)

    def open(self) -> AgentSession:
        runner = FakeRunner({("/bin/sh",): probe(), ("/usr/bin/python3",): self.channel})
        return open_session(runner, archive=ARCHIVE, controller_id="c1")


def echo(request: dict) -> list[bytes]:
    return [line(request["id"], "result", {"verb": request["verb"], "args": request["args"]})]


class TestHello:
    def test_is_kept(self):
        with Peer().open() as session:
            assert (session.machine_id, session.boot_id, session.hello["agent"]) == ("m1", "b1", "abc")

    def test_is_found_behind_lines_of_the_login_shell(self):
        noise = b'Welcome!\n{"json": true}\n' + line("x", "result") + line("", "hello", HELLO)
        with Peer(first=(noise,)).open() as session:
            assert session.boot_id == "b1"

    def test_may_be_a_refusal(self):
        body = {"code": "STATE_ROOT_NOT_LOCAL", "message": "On NFS.", "next_step": "Move it.", "numbers": {}}
        with pytest.raises(AgentRefused) as caught:
            Peer(first=(line("", "refusal", body),)).open()
        assert (caught.value.code, caught.value.next_step) == ("STATE_ROOT_NOT_LOCAL", "Move it.")

    def test_that_never_comes_is_named_with_what_was_written(self):
        peer = Peer(first=(b"",))
        peer.channel.errors = b"Traceback\nImportError: no module named json\n"
        with pytest.raises(AgentRefused) as caught:
            peer.open()
        assert caught.value.code == "AGENT_SILENT"
        assert "no module named json" in caught.value.message
        assert peer.channel.closed

    def test_of_another_protocol_is_refused(self):
        with pytest.raises(AgentRefused) as caught:
            Peer(first=(line("", "hello", {"protocol": [2, 3]}),)).open()
        assert caught.value.code == "PROTOCOL_UNKNOWN"


class TestRequest:
    def test_gives_the_body_and_sends_the_fence(self):
        peer = Peer(echo)
        with peer.open() as session:
            fence = {"controller": "c1", "run": "r", "attempt": 2}
            assert session.request("status", {"launch_id": "x"}, fence=fence, timeout=5)["verb"] == "status"
        assert (peer.asked[0]["v"], peer.asked[0]["fence"]) == (1, fence)

    def test_raises_a_refusal_with_its_numbers(self):
        body = {
            "code": "PORT_TAKEN",
            "message": "Port 80 is taken.",
            "next_step": "Take 81.",
            "numbers": {"port": 80},
        }
        peer = Peer(lambda request: [line(request["id"], "refusal", body)])
        with peer.open() as session, pytest.raises(AgentRefused) as caught:
            session.request("launch", {}, timeout=5)
        refused = caught.value
        assert (refused.code, refused.message, refused.numbers) == (
            "PORT_TAKEN",
            "Port 80 is taken.",
            {"port": 80},
        )
        assert refused.refusal.next_step == "Take 81."

    @pytest.mark.parametrize("body", [{}, {"code": None, "numbers": 7}, {"message": ["x"]}])
    def test_survives_a_refusal_without_form(self, body):
        peer = Peer(lambda request: [line(request["id"], "refusal", body)])
        with peer.open() as session, pytest.raises(AgentRefused) as caught:
            session.request("x", {}, timeout=5)
        assert caught.value.code == "AGENT_ERROR"

    def test_sorts_answers_that_come_out_of_order(self):
        held: list[bytes] = []

        def answer(request: dict) -> list[bytes]:
            held.extend(echo(request))
            return list(reversed(held)) if len(held) == 8 else []

        results: dict[int, int] = {}
        with Peer(answer).open() as session:

            def ask(number: int) -> None:
                results[number] = session.request("v", {"n": number}, timeout=5)["args"]["n"]

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        assert results == {number: number for number in range(8)}

    def test_times_out_and_cancels_what_it_asked(self):
        peer = Peer()
        with peer.open() as session:
            with pytest.raises(TimedOut):
                session.request("observe", {}, timeout=0.1)
            assert peer.asked[-1]["verb"] == "cancel"
            assert peer.asked[-1]["args"] == {"id": peer.asked[0]["id"]}
            assert session.alive

    def test_passes_over_unknown_kinds_fields_and_nonsense(self):
        def answer(request: dict) -> list[bytes]:
            odd = line(request["id"], "weather", {"x": 1}) + b"not json\n[1]\n" + line("99", "result")
            return [odd + line(request["id"], "result", {"ok": 1}, colour="red")]

        with Peer(answer).open() as session:
            assert session.request("x", {}, timeout=5) == {"ok": 1}

    def test_too_long_is_refused_before_it_is_sent(self):
        peer = Peer(echo)
        with peer.open() as session, pytest.raises(AgentRefused) as caught:
            session.request("launch", {"x": "y" * LINE_MAX}, timeout=5)
        assert caught.value.code == "REQUEST_TOO_LONG"
        assert peer.asked == []


class TestStream:
    def answer(self, request: dict) -> list[bytes]:
        if request["verb"] == "cancel":
            return [line(request["args"]["id"], "result", {"cancelled": True}), line(request["id"], "result")]
        return [line(request["id"], "event", {"n": n}) for n in range(3)]

    def test_gives_events_then_the_result(self):
        def answer(request: dict) -> list[bytes]:
            return [
                *self.answer(request),
                line(request["id"], "heartbeat"),
                line(request["id"], "result", {"ok": 1}),
            ]

        with Peer(answer).open() as session, session.stream("tail", {}) as stream:
            assert [event["n"] for event in stream] == [0, 1, 2]
            assert stream.result == {"ok": 1}

    def test_raises_a_refusal_after_the_events(self):
        def answer(request: dict) -> list[bytes]:
            return [*self.answer(request), line(request["id"], "refusal", {"code": "STILL_ALIVE"})]

        with Peer(answer).open() as session, pytest.raises(AgentRefused) as caught:
            list(session.stream("stop", {}))
        assert caught.value.code == "STILL_ALIVE"

    def test_can_be_cancelled_and_read_to_its_end(self):
        with Peer(self.answer).open() as session, session.stream("watch", {}) as stream:
            next(stream)
            stream.cancel()
            assert len(list(stream)) == 2
            assert stream.result == {"cancelled": True}

    def test_ticks_while_nothing_comes(self):
        peer = Peer(self.answer)
        with peer.open() as session:
            stream = session.stream("watch", {})
            seen = []
            for event in stream.ticks(0.05):
                seen.append(event)
                if event is None:
                    stream.cancel()
            assert seen[:4] == [{"n": 0}, {"n": 1}, {"n": 2}, None]
            assert stream.result == {"cancelled": True}

    def test_idle_for_too_long_is_cancelled(self):
        peer = Peer(self.answer)
        with peer.open() as session, pytest.raises(TimedOut):
            list(session.stream("watch", {}, idle_timeout=0.1))
        assert peer.asked[-1]["verb"] == "cancel"

    def test_left_early_is_cancelled(self):
        peer = Peer(self.answer)
        with peer.open() as session:
            with session.stream("watch", {}) as stream:
                next(stream)
            assert peer.asked[-1]["verb"] == "cancel"

    def test_that_nobody_reads_is_ended_without_harm_to_others(self, monkeypatch):
        monkeypatch.setattr(agent_stream, "MAILBOX_MAX", 2000)

        def answer(request: dict) -> list[bytes]:
            if request["verb"] == "tail":
                return [line(request["id"], "event", {"text": "x" * 500}) for _ in range(10)]
            return echo(request)

        with Peer(answer).open() as session:
            stream = session.stream("tail", {})
            assert session.request("status", {}, timeout=5)["verb"] == "status"
            got = []
            with pytest.raises(AgentRefused) as caught:
                got.extend(iter(stream))
            assert caught.value.code == "STREAM_OVERRUN"


class TestLoss:
    def test_is_told_to_everybody_who_waits_and_to_the_next(self):
        peer = Peer()
        with peer.open() as session:
            errors: list[BaseException] = []

            def wait() -> None:
                try:
                    session.request("observe", {}, timeout=20)
                except ConnectionLost as error:
                    errors.append(error)

            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            while len(peer.asked) < 3:
                time.sleep(0.01)
            peer.channel.errors = b"Killed\n"
            peer.channel.push(b"")
            for thread in threads:
                thread.join(5)
            assert len(errors) == 3
            assert "Killed" in str(errors[0])
            assert not session.alive
            with pytest.raises(ConnectionLost):
                session.request("observe", {}, timeout=5)

    def test_follows_from_missing_heartbeats_only_while_something_is_asked(self, monkeypatch):
        monkeypatch.setattr(agent_session, "SILENCE_MAX_S", 0.3)
        with Peer().open() as session:
            time.sleep(1.2)
            assert session.alive
            with pytest.raises(ConnectionLost) as caught:
                session.request("observe", {}, timeout=20)
        assert "no sign of life" in caught.value.message

    def test_does_not_follow_while_heartbeats_come(self, monkeypatch):
        monkeypatch.setattr(agent_session, "SILENCE_MAX_S", 0.4)
        peer = Peer()
        with peer.open() as session:
            beating = threading.Event()

            def beat() -> None:
                while not beating.wait(0.1):
                    peer.channel.push(line("1", "heartbeat"))

            thread = threading.Thread(target=beat)
            thread.start()
            with pytest.raises(TimedOut):
                session.request("observe", {}, timeout=1.5)
            beating.set()
            thread.join()
            assert session.alive

    def test_follows_from_a_line_without_end(self):
        peer = Peer(lambda request: [b"x" * (LINE_MAX + 1)])
        with peer.open() as session, pytest.raises(ConnectionLost) as caught:
            session.request("observe", {}, timeout=5)
        assert str(LINE_MAX) in caught.value.message

    def test_of_ones_own_doing_ends_the_waiting(self):
        session = Peer().open()
        errors: list[BaseException] = []

        def wait() -> None:
            with pytest.raises(ConnectionLost) as caught:
                session.request("observe", {}, timeout=20)
            errors.append(caught.value)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        session.close()
        session.close()
        thread.join(5)
        assert len(errors) == 1


class TestLines:
    def test_are_cut_wherever_the_pieces_end(self):
        raw = line("1", "event", {"text": "ü"}) + line("2", "result")
        buffer, lines = LineBuffer(), []
        for position in range(len(raw)):
            buffer.add(raw[position : position + 1])
            lines += list(buffer.take_lines())
        assert [read_answer(text).id for text in lines] == ["1", "2"]

    @pytest.mark.parametrize(
        "raw",
        [b"", b"7", b"null", b"[]", b"{}", b'{"id":1,"kind":"x"}', b"[" * 100_000, b'{"id":"1","kind":null}'],
    )
    def test_of_no_protocol_are_none(self, raw):
        assert read_answer(raw) is None

    def test_are_cleaned_of_what_no_database_takes(self):
        values = b'"a":"x\\u0000y","b":["\\ud800"],"c":"\xff","d":"\\ud83d\\ude00"'
        raw = b'{"id":"1","kind":"event","body":{' + values + b"}}"
        body = read_answer(raw).body
        assert body == {"a": "x\ufffdy", "b": ["\ufffd"], "c": "\ufffd", "d": "\U0001f600"}


class TestProbe:
    def test_is_found_behind_noise(self):
        result = reply(b"Welcome\nFLEETADMIN-TRIED python3 Python 3.6.8\n" + probe().stdout)
        assert read_probe(result)["version"] == [3, 11, 2]

    @pytest.mark.parametrize("text", ["", "FLEETADMIN {", 'FLEETADMIN {"python": 1}', "FLEETADMIN []"])
    def test_without_form_is_none(self, text):
        assert read_probe(reply(text)) is None

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"link": "/home/fleet/.fleetadmin"}, "STATE_ROOT_LINKED"),
            ({"owner": 0}, "STATE_ROOT_NOT_OURS"),
            ({"filesystem": "nfs4"}, "STATE_ROOT_NOT_LOCAL"),
            ({"filesystem": "fuse.sshfs"}, "STATE_ROOT_NOT_LOCAL"),
            ({"owner": None}, None),
            ({}, None),
        ],
    )
    def test_is_judged(self, changes, code):
        refusal = judge_probe(read_probe(probe(**changes)), tried=(), interpreters=())
        assert (refusal and refusal.code) == code

    def test_without_any_python_names_what_was_tried(self):
        assert judge_probe(None, tried=(), interpreters=("python3",)).code == "NO_PYTHON"
        old = judge_probe(None, tried=("python3 Python 3.6.8",), interpreters=())
        assert old.code == "PYTHON_TOO_OLD"
        assert "3.6.8" in old.message

    def test_tries_the_administrators_first_and_those_of_vllm_last(self):
        order = order_interpreters(chosen=("/opt/py",), of_vllm=("/venv/bin/python", "python3"))
        assert (order[0], order[1], order[-1]) == ("/opt/py", "python3", "/venv/bin/python")
        assert len(order) == len(set(order))


class LocalRunner:
    """Runs the bootstrap and the agent on this machine, with a home of its own: real sh, real Python."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands = 0
        self._environment = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def run(self, command: Command) -> Result:
        self.commands += 1
        done = subprocess.run(
            ["/bin/sh", "-c", command.render()],
            input=command.stdin,
            capture_output=True,
            env=self._environment,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr, 0.0)

    def put(self, path: str, content: bytes, mode: int) -> None:
        Path(path).write_bytes(content)
        Path(path).chmod(mode)

    def open(self, command: Command) -> PipeChannel:
        return PipeChannel(command, self._environment)

    def close(self) -> None:
        pass


class PipeChannel:
    def __init__(self, command: Command, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def receive(self, timeout: float) -> bytes:
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise TimedOut("NOTHING_RECEIVED", program="agent", seconds="1", address="here")
        return os.read(self._process.stdout.fileno(), 65536)

    def read_errors(self) -> bytes:
        return b""

    def close(self) -> None:
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(10)


class TestRealAgent:
    def test_is_installed_once_and_says_hello(self, tmp_path: Path):
        runner, copied = LocalRunner(tmp_path), []
        counts = []
        for _ in range(2):
            before = runner.commands
            with open_session(
                runner,
                archive=build_archive(),
                controller_id="11111111-2222-3333-4444-555555555555",
                interpreters=(sys.executable,),
                on_installed=lambda path, digest: copied.append((path, digest)),
            ) as session:
                assert session.request("observe", {}, timeout=20)["boot_id"] == session.boot_id
            counts.append(runner.commands - before)
        archive = build_archive()
        assert copied == [(f"{tmp_path}/.fleetadmin/agents/{archive.name}", archive.digest)]
        assert counts[1] == 1  # one round trip where the agent is there already
        assert (tmp_path / ".fleetadmin").stat().st_mode & 0o777 == 0o700

    def test_is_refused_without_a_python(self, tmp_path: Path):
        runner = LocalRunner(tmp_path)
        runner._environment["PATH"] = str(tmp_path)
        with pytest.raises(AgentRefused) as caught:
            open_session(runner, archive=build_archive(), controller_id="c")
        assert caught.value.code == "NO_PYTHON"
        assert list(tmp_path.iterdir()) == []
