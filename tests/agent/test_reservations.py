"""Two controllers of one account on one card: what one was promised the other cannot have."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from hosts.agent.linux import LinuxSystem
from hosts.agent.system import DeviceUse
from tests.agent.channel import L0, L1, L2
from tests.agent.conftest import Opener


class WithGpu(LinuxSystem):
    """A card of 100 bytes; `holders` are (pid, bytes) of processes on it."""

    holders: tuple[tuple[int, int | None], ...] = ()

    def device_use(self) -> list[DeviceUse]:
        used = sum(size or 0 for _pid, size in self.holders)
        return [DeviceUse("GPU-1", total=100, used=used, free=100 - used, processes=self.holders)]


@pytest.fixture
def system() -> WithGpu:
    return WithGpu()


class TestPromises:
    def test_to_another_controller_count(self, open_agent: Opener, system: WithGpu) -> None:
        ours, theirs = open_agent(system, controller="c1"), open_agent(system, controller="c2")
        theirs.controller = "c2"
        theirs.launch(L1, reserved_bytes={"GPU-1": 60})
        refusal = ours.refused("launch", **request(ours, L2, 50))
        assert refusal["code"] == "DEVICE_FULL"
        assert (refusal["numbers"]["promised"], refusal["numbers"]["missing"]) == (60, 10)
        assert refusal["numbers"]["holders"] == [{"launch_id": L1, "controller": "c2"}]
        assert ours.launch(L2, reserved_bytes={"GPU-1": 40})["state"] == "running"

    def test_end_with_the_launch(self, open_agent: Opener, system: WithGpu) -> None:
        agent = open_agent(system)
        agent.launch(L1, reserved_bytes={"GPU-1": 100})
        assert agent.refused("launch", **request(agent, L2, 1))["code"] == "DEVICE_FULL"
        agent.ask("stop", launch_id=L1, grace_s=2, second_term_s=1, reason="test")
        assert agent.launch(L2, reserved_bytes={"GPU-1": 100})["state"] == "running"

    def test_are_not_counted_twice_once_the_memory_is_used(self, open_agent: Opener, system: WithGpu) -> None:
        agent = open_agent(system)
        agent.launch(L1, reserved_bytes={"GPU-1": 60})
        engine = agent.wait_tree(L1)["engine_core"]["pid"]
        system.holders = ((engine, 55),)
        assert agent.launch(L2, slot="s2", reserved_bytes={"GPU-1": 40})["state"] == "running"

    def test_stand_beside_what_others_hold(self, open_agent: Opener, system: WithGpu) -> None:
        agent = open_agent(system)
        system.holders = ((os.getpid(), 30),)
        refusal = agent.refused("launch", **request(agent, L1, 71))
        assert (refusal["code"], refusal["numbers"]["foreign"]) == ("DEVICE_FULL", 30)
        assert agent.launch(L1, reserved_bytes={"GPU-1": 70})["state"] == "running"

    def test_are_made_to_one_of_many_that_ask_at_the_same_moment(self, open_agent: Opener, system: WithGpu) -> None:
        found: list[dict[str, Any]] = []
        channels = [open_agent(system, controller=f"c{number}") for number in range(3)]

        def ask(number: int) -> None:
            channel = channels[number]
            channel.controller = f"c{number}"
            launch_id = (L0, L1, L2)[number]
            identity = channel.begin("launch", **request(channel, launch_id, 60))
            found.append(channel.finish(identity)[-1])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer["kind"] for answer in found) == ["refusal", "refusal", "result"]

    @pytest.mark.parametrize(
        "given", [None, 7, [], {"GPU-1": -5}, {"GPU-1": "all"}, {"GPU-1": True}, {"GPU-9": 1 << 50}]
    )
    def test_of_no_sense_or_on_no_device_are_passed_over(self, open_agent: Opener, system: WithGpu, given: Any) -> None:
        assert open_agent(system).launch(L1, reserved_bytes=given)["state"] == "running"


def request(channel: Any, launch_id: str, size: int) -> dict[str, Any]:
    argv = ["/bin/sleep", "20"]
    return {
        "launch_id": launch_id,
        "instance": "i",
        "slot": f"s-{launch_id}",
        "argv": argv,
        "reserved_bytes": {"GPU-1": size},
    }
