"""The real agent over real sshd as an unprivileged account: from hello to stop."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from hosts.agent_archive import build_archive
from hosts.agent_session import AgentRefused, AgentSession, open_session
from hosts.ssh.errors import ConnectionLost, SshError, TimedOut
from hosts.ssh.paramiko_runner import connect
from rig.hosts import RigHost, hosts
from tests.rig.conftest import QUICK, endpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real

CONTROLLER = "11111111-2222-3333-4444-555555555555"
SERVER = (
    "import http.server, sys\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); print('asked', self.path, flush=True)\n"
    "print('listening', flush=True)\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
)


@contextmanager
def session_on(host: RigHost, **options) -> Iterator[AgentSession]:
    runner = connect(endpoint_of(host), limits=QUICK)
    try:
        with open_session(runner, archive=build_archive(), controller_id=CONTROLLER, **options) as session:
            yield session
    finally:
        runner.close()


def launch_args(host: RigHost, number: int, *, port: int = 8100, python: str = "/usr/bin/python3") -> dict:
    return {
        "launch_id": f"00000000-0000-4000-8000-{number:012d}",
        "instance": f"instance-{number}",
        "slot": f"slot-{number}",
        "argv": [python, "-c", SERVER, str(port)],
        "env": {"PLAIN": "1"},
        "secret_env": {"API_KEY": "s3cret-value"},
        "cwd": None,
        "address": "127.0.0.1",
        "port": port,
        "devices": [],
        "model_path": None,
        "min_free_disk": 1,
    }


def fence(attempt: int = 1) -> dict:
    return {"controller": CONTROLLER, "run": "run-1", "attempt": attempt}


def read_until(stream, text: str) -> str:
    seen = ""
    for event in stream:
        seen += event["text"]
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} did not come: {seen!r}")


def titles(host: RigHost) -> list[str]:
    return [row.title for row in host.processes() if row.uid == host.uid]


class TestLife:
    def test_of_a_launch_from_hello_to_stop(self, host: RigHost):
        args = launch_args(host, 1)
        with session_on(host) as session:
            assert session.hello["user"] == "fleet"
            assert session.boot_id == host.boot_id
            assert session.machine_id == host.machine_id
            assert session.hello["state_root"] == "/home/fleet/.fleetadmin"

            started = session.request("launch", args, fence=fence(), timeout=20)
            assert started["adopted"] is False
            tail = {"launch_id": args["launch_id"], "offset": 0, "follow": True}
            with session.stream("tail", tail, idle_timeout=15) as stream:
                assert "listening" in read_until(stream, "listening")

            seen = session.request("observe", {}, timeout=10)
            (view,) = [view for view in seen["launches"] if view["launch_id"] == args["launch_id"]]
            assert (view["state"], view["pid"]) == ("running", started["pid"])

            again = session.request("launch", args, fence=fence(), timeout=20)
            assert (again["adopted"], again["pid"]) == (True, started["pid"])

            stop = {"launch_id": args["launch_id"], "grace_s": 5, "second_term_s": 2, "reason": "test"}
            with session.stream("stop", stop, fence=fence(), idle_timeout=20) as stream:
                steps = [event["step"] for event in stream]
                assert "term" in steps
                assert stream.result is not None
                assert stream.result["survivors"] == []
        assert not [title for title in titles(host) if "http.server" in title]

    def test_goes_on_when_the_connection_ends_and_is_adopted(self, host: RigHost):
        args = launch_args(host, 2, port=8102)
        with session_on(host) as session:
            started = session.request("launch", args, fence=fence(), timeout=20)
        time.sleep(0.5)
        assert not [title for title in titles(host) if ".pyz serve" in title]
        with session_on(host) as session:
            again = session.request("launch", args, fence=fence(2), timeout=20)
            assert (again["adopted"], again["pid"]) == (True, started["pid"])
            stop = {"launch_id": args["launch_id"], "grace_s": 5, "second_term_s": 2, "reason": "test"}
            session.request("stop", stop, fence=fence(2), timeout=30)

    def test_refusals_keep_code_sentence_and_next_step(self, host: RigHost):
        with session_on(host) as session, pytest.raises(AgentRefused) as caught:
            session.request("status", {"launch_id": "00000000-0000-4000-8000-999999999999"}, timeout=10)
        assert caught.value.code == "LAUNCH_UNKNOWN"
        assert caught.value.message
        assert caught.value.next_step

    def test_secrets_are_in_no_title_and_no_file(self, host: RigHost):
        args = launch_args(host, 3, port=8103)
        with session_on(host) as session:
            session.request("launch", args, fence=fence(), timeout=20)
            found = host.run(["grep", "-rl", "s3cret-value", "/home/fleet", "/tmp"], check=False)
            shown = [title for title in titles(host) if "s3cret" in title]
            stop = {"launch_id": args["launch_id"], "grace_s": 5, "second_term_s": 2, "reason": "test"}
            session.request("stop", stop, fence=fence(), timeout=30)
        assert (found, shown) == ("", [])


class TestInterpreters:
    @pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13"])
    def test_serves_under(self, host: RigHost, interpreter: Callable[[str], str], version: str):
        python = interpreter(version)
        with session_on(host, interpreters=(python,)) as session:
            assert session.hello["python"].startswith(version + ".")
            facts = session.request("facts", {"model_roots": [], "vllm_roots": []}, timeout=30)
            assert facts["gpus"]["source"] in {"nvml", "nvidia-smi", "none"}
            number = 800 + int(version.partition(".")[2])
            args = launch_args(host, number, port=8000 + number, python=python)
            session.request("launch", args, fence=fence(), timeout=20)
            tail = {"launch_id": args["launch_id"], "offset": 0, "follow": True}
            with session.stream("tail", tail, idle_timeout=15) as stream:
                read_until(stream, "listening")
            stop = {"launch_id": args["launch_id"], "grace_s": 5, "second_term_s": 2, "reason": "test"}
            assert session.request("stop", stop, fence=fence(), timeout=30)["survivors"] == []

    def test_too_old_is_named(self, interpreter: Callable[[str], str]):
        folder = interpreter("3.7").rpartition("/bin/")[0]
        old = (f"{folder}/bin/python3.7",)
        with (
            hosts(1, python=False, mounts=[folder]) as rig,
            pytest.raises(AgentRefused) as caught,
            session_on(rig[0], interpreters=old),
        ):
            pass
        assert caught.value.code == "PYTHON_TOO_OLD"
        assert "3.7" in caught.value.message

    def test_none_is_named_and_one_of_vllm_will_do(self, interpreter: Callable[[str], str]):
        folder = interpreter("3.12").rpartition("/bin/")[0]
        with hosts(1, python=False, mounts=[folder]) as rig:
            with pytest.raises(AgentRefused) as caught, session_on(rig[0]):
                pass
            assert caught.value.code == "NO_PYTHON"
            assert rig[0].run(["ls", "-A", "/home/fleet"]) == ""
            with session_on(rig[0], vllm_interpreters=(f"{folder}/bin/python3.12",)) as session:
                assert session.hello["python"].startswith("3.12.")


class TestInstallation:
    def test_copies_once_and_again_only_when_the_file_differs(self):
        copied: list[str] = []
        with hosts(1) as rig:
            host = rig[0]
            for change in (None, None, "spoil"):
                if change:
                    host.run(["/bin/sh", "-c", "echo spoiled | tee -a /home/fleet/.fleetadmin/agents/*.pyz"])
                with session_on(host, on_installed=lambda path, _digest: copied.append(path)) as session:
                    session.request("observe", {}, timeout=10)
            mode = host.run(["stat", "-c", "%a %U", "/home/fleet/.fleetadmin", copied[0]])
        assert len(copied) == 2
        assert mode == "700 fleet\n600 fleet\n"

    @pytest.mark.parametrize(
        ("prepare", "code"),
        [
            ("ln -s /tmp /home/fleet/.fleetadmin", "STATE_ROOT_LINKED"),
            ("mkdir /home/fleet/.fleetadmin; chown root /home/fleet/.fleetadmin", "STATE_ROOT_NOT_OURS"),
        ],
    )
    def test_refuses_a_state_root_that_is_not_safe(self, prepare: str, code: str):
        with hosts(1) as rig:
            rig[0].run(["/bin/sh", "-c", prepare])
            with pytest.raises(AgentRefused) as caught, session_on(rig[0]):
                pass
        assert caught.value.code == code

    def test_takes_no_line_of_the_login_shell_for_its_own(self):
        with hosts(1) as rig:
            noise = 'echo "Welcome {to} this host"; echo \'{"v":1,"id":"x","kind":"result","body":{}}\''
            rig[0].path("/home/fleet/.bashrc").write_text(noise + "\n")
            with session_on(rig[0]) as session:
                assert session.request("observe", {}, timeout=10)["boot_id"] == rig[0].boot_id


class TestSideBySide:
    def test_many_requests_and_a_stream_share_the_channel(self, host: RigHost):
        with session_on(host) as session:
            samples: list[dict] = []
            watch = session.stream("watch", {"interval_s": 1, "logs": {}})
            for event in watch.ticks(0.5):
                samples += [event] if event and "sample" in event else []
                if samples:
                    break
            answers: list[str] = []
            threads = [
                threading.Thread(target=lambda: answers.append(session.request("observe", {}, timeout=20)["boot_id"]))
                for _ in range(10)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(25)
            assert answers == [host.boot_id] * 10
            watch.cancel()
            list(watch)
            assert watch.result == {"cancelled": True}

    def test_a_request_that_takes_too_long_hurts_nobody_else(self, host: RigHost):
        with session_on(host) as session:
            with pytest.raises(TimedOut):
                session.request("watch", {"interval_s": 1, "logs": {}}, timeout=0.5)
            assert session.request("observe", {}, timeout=10)["boot_id"] == host.boot_id


class TestLoss:
    def test_of_the_link_is_told_to_everybody_in_about_20_seconds(self):
        with hosts(1) as rig, session_on(rig[0]) as session:
            errors: list[tuple[float, SshError]] = []

            def wait(action) -> None:
                with pytest.raises(ConnectionLost) as caught:
                    action()
                errors.append((time.monotonic(), caught.value))

            watch = {"interval_s": 1, "logs": {}}
            stream = session.stream("watch", watch)
            threads = [
                threading.Thread(target=wait, args=(lambda: list(stream),)),
                threading.Thread(target=wait, args=(lambda: session.request("watch", watch, timeout=90),)),
            ]
            for thread in threads:
                thread.start()
            time.sleep(1.0)
            rig[0].cut_link()
            cut = time.monotonic()
            for thread in threads:
                thread.join(40)
            assert len(errors) == 2
            assert max(at - cut for at, _ in errors) < 22
            assert not session.alive
            with pytest.raises(ConnectionLost):
                session.request("observe", {}, timeout=5)

    def test_of_the_agent_is_told_at_once(self, host: RigHost):
        with session_on(host) as session:
            stream = session.stream("watch", {"interval_s": 1, "logs": {}})
            next(stream)
            host.run(["pkill", "-KILL", "-U", str(host.uid), "-f", "pyz serve"])
            started = time.monotonic()
            with pytest.raises(ConnectionLost):
                list(stream)
            assert time.monotonic() - started < 3

    def test_of_the_whole_host_leaves_no_stale_session(self):
        with hosts(1) as rig:
            with session_on(rig[0]) as session:
                before = session.boot_id
                rig[0].reboot()
                with pytest.raises(ConnectionLost):
                    session.request("observe", {}, timeout=30)
            with session_on(rig[0]) as session:
                assert session.boot_id != before
