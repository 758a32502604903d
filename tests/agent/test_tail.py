from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hosts.agent.follow import TEXT_LIMIT, LogFollower, whole_characters
from tests.agent.channel import L1, Channel


def joined(events: list[dict[str, Any]]) -> str:
    """The text of the events, whose offsets must fit together."""
    for before, after in itertools.pairwise(events):
        assert before["next"] == after["offset"]
    return "".join(event["text"] for event in events)


def read_all(path: Path, *, final: bool = True) -> list[dict[str, Any]]:
    follower, events = LogFollower(str(path), 0), []
    while (event := follower.read(0.0, final=final)) is not None:
        events.append(event)
    return events


class TestTail:
    def test_follows_until_the_launch_has_ended(self, agent: Channel) -> None:
        agent.launch(L1, "--say", "one", "--say", "two", "--exit-code", "0", "--exit-after", "0.4")
        request = agent.begin("tail", launch_id=L1)
        result = agent.finish(request)[-1]["body"]
        assert joined(agent.events(request)) == "one\ntwo\n"
        assert result == {"offset": 8, "ended": True}

    def test_begins_at_an_offset_and_ends_at_a_limit(self, agent: Channel) -> None:
        agent.launch(L1, "--say", "one", "--say", "two", "--exit-code", "0")
        agent.wait_status(L1, lambda view: view["state"] == "exited")
        request = agent.begin("tail", launch_id=L1, offset=4, max_bytes=2)
        assert agent.finish(request)[-1]["body"] == {"offset": 6, "ended": False}
        assert joined(agent.events(request)) == "tw"

    def test_stops_at_the_present_end_without_follow(self, agent: Channel) -> None:
        agent.launch(L1)
        agent.wait_tree(L1)
        request = agent.begin("tail", launch_id=L1, follow=False)
        assert agent.finish(request)[-1]["body"]["ended"] is False
        assert joined(agent.events(request)) == "ready\n"

    def test_sends_a_line_without_end_after_a_second_and_keeps_carriage_returns(self, agent: Channel) -> None:
        started = agent.launch(L1)
        agent.wait_tree(L1)
        request = agent.begin("tail", launch_id=L1)
        agent.wait_for(request, lambda found: len(found) >= 1)
        with Path(started["log_path"]).open("ab") as log:
            log.write(b"Loading: 10%\rLoading: 50%")
            log.flush()
            time.sleep(0.5)
            assert joined(agent.events(request)) == "ready\n"
            agent.wait_for(request, lambda found: "50%" in str(found))
            log.write(b"\rLoading: 100%\n")
        agent.wait_for(request, lambda found: "100%" in str(found))
        assert joined(agent.events(request)) == "ready\nLoading: 10%\rLoading: 50%\rLoading: 100%\n"
        agent.ask("cancel", id=request)
        assert agent.finish(request)[-1]["body"] == {"cancelled": True}

    def test_goes_on_while_orphans_still_write(self, agent: Channel) -> None:
        agent.launch(L1)
        tree = agent.wait_tree(L1)
        request = agent.begin("tail", launch_id=L1)
        target = {"pid": tree["api_server"]["pid"], "start_time": tree["api_server"]["start_time"]}
        agent.ask("signal", launch_id=L1, signal="KILL", **target)
        agent.wait_status(L1, lambda view: view["state"] == "orphaned")
        time.sleep(1.2)
        assert all(answer["kind"] != "result" for answer in agent.wait_for(request, bool))
        agent.ask("sweep", preview=False, launches=[L1])
        assert agent.finish(request)[-1]["body"]["ended"] is True

    def test_refuses_an_offset_beyond_the_end(self, agent: Channel) -> None:
        agent.launch(L1, "--exit-code", "0")
        assert agent.refused("tail", launch_id=L1, offset=10**9)["code"] == "OFFSET_BEYOND_END"
        assert agent.refused("tail", launch_id="never")["code"] == "LAUNCH_UNKNOWN"


class TestLogFollower:
    @pytest.mark.parametrize(
        "content",
        [
            b"x" * 200_000 + b"\nend\n",
            b"\x1b[31m\x00\x01" * 40_000,
            "é漢😀".encode() * 40_000,
            b"\xff\xfe" * 90_000 + b"\n",
            (b"y" * 1000 + b"\n") * 300,
            b"half a character: " + "漢".encode()[:2],
        ],
        ids=["long line", "control characters", "wide characters", "invalid", "many lines", "torn end"],
    )
    def test_cuts_into_events_that_fit_a_line_and_loses_nothing(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "log"
        path.write_bytes(content)
        events = read_all(path)
        assert joined(events) == content.decode("utf-8", "replace").replace("\0", "\ufffd")
        assert events[-1]["next"] == len(content)
        assert all(len(event["text"].encode()) <= TEXT_LIMIT for event in events)

    def test_does_not_tear_a_character_that_is_still_being_written(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes("ab漢".encode()[:-1])
        follower = LogFollower(str(path), 0)
        assert follower.read(0.0, final=False) is None
        event = follower.read(1.1, final=False)
        assert event is not None
        assert event["text"] == "ab"
        path.write_bytes("ab漢\n".encode())
        event = follower.read(1.2, final=False)
        assert event is not None
        assert event["text"] == "漢\n"

    def test_reads_whole_lines_from_a_file_that_grows(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        follower = LogFollower(str(path), 0)
        assert follower.read(0.0, final=True) is None  # not there yet
        texts: list[str] = []
        done = threading.Event()

        def write() -> None:
            with path.open("ab", buffering=0) as log:
                for number in range(3000):
                    log.write(f"line {number}\n".encode()[:4])
                    log.write(f"line {number}\n".encode()[4:])
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while True:
            finished = done.is_set()
            event = follower.read(0.0, final=False)
            if event is not None:
                assert event["text"].endswith("\n")
                texts.append(event["text"])
            elif finished:
                break
        writer.join()
        assert "".join(texts) == "".join(f"line {number}\n" for number in range(3000))

    def test_follows_no_link(self, tmp_path: Path) -> None:
        (tmp_path / "log").symlink_to("/etc/passwd")
        assert read_all(tmp_path / "log") == []

    @pytest.mark.parametrize(
        ("content", "length"),
        [
            (b"", 0),
            (b"ab", 2),
            ("é".encode(), 2),
            ("é".encode()[:1], 0),
            ("a漢".encode()[:3], 1),
            (b"\x80\x80\x80\x80\x80", 5),
        ],
    )
    def test_finds_the_end_of_the_last_whole_character(self, content: bytes, length: int) -> None:
        assert whole_characters(content) == length
