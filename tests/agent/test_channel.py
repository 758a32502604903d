from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hosts.agent import server
from hosts.agent.lines import LINE_LIMIT
from hosts.agent.linux import LinuxSystem
from hosts.agent.system import Process
from tests.agent.channel import L1, Channel, agent_command, is_alive, open_process
from tests.agent.conftest import Opener


class TestHello:
    def test_says_who_and_where_it_is(self, agent: Channel, state_root: Path) -> None:
        hello = agent.hello
        assert hello["protocol"] == [1]
        assert hello["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert hello["state_root"] == str(state_root)
        assert hello["clock"].endswith("Z")


class TestNonsense:
    @pytest.mark.parametrize(
        ("line", "code"),
        [
            (b"nonsense", "BAD_JSON"),
            (b"\xff\xfe\x00", "BAD_JSON"),
            (b"[1, 2]", "BAD_JSON"),
            (b"[" * 100_000, "BAD_JSON"),
            (b"{}", "BAD_REQUEST"),
            (b'{"v": 1, "id": 7, "verb": "observe"}', "BAD_REQUEST"),
            (b"x" * (LINE_LIMIT + 1), "LINE_TOO_LONG"),
            (b"x" * (3 * LINE_LIMIT), "LINE_TOO_LONG"),
        ],
    )
    def test_is_refused_and_the_next_line_is_served(self, agent: Channel, line: bytes, code: str) -> None:
        agent.send_raw(line)
        answers = agent.wait_for("", lambda found: len(found) == 2)
        assert (answers[1]["kind"], answers[1]["body"]["code"]) == ("refusal", code)
        assert "boot_id" in agent.ask("observe")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"verb": "dance"}, "UNKNOWN_VERB"),
            ({"verb": "observe", "v": 2}, "PROTOCOL_UNKNOWN"),
            ({"verb": ["observe"]}, "BAD_REQUEST"),
            ({"verb": "observe", "args": []}, "BAD_REQUEST"),
            ({"verb": "status", "args": {}}, "BAD_REQUEST"),
            ({"verb": "facts", "args": {"model_roots": "/models"}}, "BAD_REQUEST"),
        ],
    )
    def test_under_an_id_is_refused_under_that_id(self, agent: Channel, fields: dict[str, object], code: str) -> None:
        agent.send_raw(json.dumps({"v": 1, "id": "n", **fields}).encode())
        assert agent.finish("n")[-1]["body"]["code"] == code

    def test_of_unknown_fields_is_ignored(self, agent: Channel) -> None:
        agent.send_raw(b'{"v": 1, "id": "n", "verb": "observe", "future": true, "args": {"also": 1}}')
        assert agent.finish("n")[-1]["kind"] == "result"


class TestRequests:
    def test_run_side_by_side_and_are_numbered(self, agent: Channel) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        streams = [agent.begin("tail", launch_id=L1) for _ in range(3)]
        assert "boot_id" in agent.ask("observe")
        for stream in streams:
            agent.ask("cancel", id=stream)
            answers = agent.finish(stream)
            assert [answer["seq"] for answer in answers] == list(range(len(answers)))
            assert answers[-1]["body"] == {"cancelled": True}

    def test_are_refused_above_the_limit_while_cancel_still_works(self, agent: Channel) -> None:
        agent.launch(L1)
        streams = [agent.begin("tail", launch_id=L1) for _ in range(server.REQUESTS)]
        assert agent.refused("observe")["code"] == "TOO_MANY_REQUESTS"
        agent.ask("cancel", id=streams[0])
        agent.finish(streams[0])
        agent.ask("observe")

    def test_are_refused_under_an_id_that_is_open(self, agent: Channel) -> None:
        agent.launch(L1)
        stream = agent.begin("tail", launch_id=L1)
        agent.send_raw(json.dumps({"v": 1, "id": stream, "verb": "observe"}).encode())
        refusal = agent.wait_for(stream, lambda found: any(answer["kind"] == "refusal" for answer in found))
        assert refusal[-1]["body"]["code"] == "DUPLICATE_ID"

    def test_that_take_long_have_heartbeats(
        self, agent: Channel, monkeypatch: pytest.MonkeyPatch, open_agent: Opener
    ) -> None:
        monkeypatch.setattr(server, "HEARTBEAT_S", 0.1)
        agent = open_agent()
        agent.launch(L1)
        stream = agent.begin("tail", launch_id=L1)
        agent.wait_for(stream, lambda found: sum(answer["kind"] == "heartbeat" for answer in found) >= 2)

    def test_that_crash_are_refused_with_the_traceback(self, open_agent: Opener) -> None:
        class Broken(LinuxSystem):
            def processes(self) -> list[Process]:
                raise RuntimeError("broken on purpose")

        refusal = open_agent(Broken()).refused("observe")
        assert refusal["code"] == "AGENT_ERROR"
        assert "broken on purpose" in refusal["numbers"]["traceback"]

    def test_with_an_answer_over_the_limit_are_refused(self, open_agent: Opener) -> None:
        class Verbose(LinuxSystem):
            def cpu(self) -> dict[str, object]:
                return {"count": 1, "model": "x" * LINE_LIMIT}

        assert open_agent(Verbose()).refused("facts")["code"] == "ANSWER_TOO_LARGE"

    def test_answer_in_utf8_whatever_the_host_holds(self, agent: Channel, tmp_path: Path) -> None:
        directory = bytes(tmp_path) + b"/model-\xff\xfe"
        Path(directory.decode("utf-8", "surrogateescape")).mkdir()
        Path(directory.decode("utf-8", "surrogateescape"), "config.json").write_text("{}")
        (model,) = agent.ask("facts", model_roots=[str(tmp_path)])["models"]
        assert "model-??" in model["path"]


class TestClosedStdin:
    def test_ends_the_agent_and_not_the_launch(self, state_root: Path) -> None:
        channel, process = open_process(agent_command(state_root))
        pid = channel.launch(L1)["pid"]
        channel.begin("tail", launch_id=L1)
        channel.begin("watch")
        began = time.monotonic()
        channel.close_stdin()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 3
        assert is_alive(pid)

    def test_lets_a_stop_that_has_begun_be_finished(self, state_root: Path) -> None:
        channel, process = open_process(agent_command(state_root))
        channel.launch(L1, "--swallow-terms", "1")
        pid = channel.wait_tree(L1)["api_server"]["pid"]
        request = channel.begin("stop", launch_id=L1, second_term_s=0.5)
        channel.wait_for(request, bool)
        channel.close_stdin()
        assert process.wait(10) == 0
        assert not is_alive(pid)
