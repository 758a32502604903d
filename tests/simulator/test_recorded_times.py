"""The recorded session once more, on a simulated H200 and a clock that jumps: each phase lasts as long as its log says.

The machine's first start, three at once with the same flags, one more of these, and one with flags of its own.
"""

from __future__ import annotations

import asyncio
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from hosts.agent.system import StartRequest
from rig.phase_logs import PHASES, measure_phases, read_recorded
from rig.phase_times import ALONE, TOGETHER, measure_imports, read_samples
from simulator.devices import GPU_MODELS, Gpu
from simulator.layout import lay_out
from simulator.machine import Machine
from simulator.programs import start_program
from simulator.spec import LLAMA3, QWEN3, HostSpec
from simulator.vllm.instance import Instance, Surroundings
from simulator.vllm.pace import Pace
from tests.simulator.conftest import find_port
from tests.simulator.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 0.1
STAMP_S = 1.0  # a stamp of a log has whole seconds
BY_STAMPS = frozenset(PHASES) - {"load", "dynamo", "graph", "compile"}
FLAGS = ("--max-model-len", "2048", "--load-format", "dummy", "--gpu-memory-utilization", "0.05",
         "--kv-cache-memory-bytes", "30G")  # fmt: skip
ADDRESS = "127.0.0.1"


class Host:
    """A host with the recorded machine's cores; starts on it pass in virtual time."""

    def __init__(self, directory: Path, *, speed: float) -> None:
        self.directory, self.loop = directory, VirtualLoop()
        self.spec = HostSpec(name="h200", gpus=("H200",), models=(QWEN3, LLAMA3), memory=512 << 30, cpus=16)
        self.layout = lay_out(self.spec, directory / "host")
        machine = Machine(
            name="h200", memory_total=512 << 30, gpus=[Gpu(uuid="GPU-1", index=0, model=GPU_MODELS["H200"])]
        )
        self.around = Surroundings(
            machine=machine, address=ADDRESS, speed=speed, loop=self.loop, pace=Pace(cores=self.spec.cpus)
        )
        self.logs: dict[Instance, Path] = {}

    def start(self, count: int, *, model: str = "Qwen3-0.6B") -> list[Instance]:
        """Start as many at one moment, wait until all serve, end them."""
        began = [self._begin(model) for _ in range(count)]

        async def wait() -> None:
            while not all(instance.started for instance in began):
                assert not any(instance.tree.api.gone for instance in began), self.logs[began[0]].read_text()
                await asyncio.sleep(0.1)
            for instance in began:
                instance.end(exit_code=0)
            await asyncio.sleep(1.0)

        self.loop.run_until_complete(wait())
        return began

    def _begin(self, model: str) -> Instance:
        executable = str(self.layout.executable(self.spec.installations[0]))
        log = self.directory / f"{len(self.logs)}.log"
        argv = [executable, "serve", str(self.layout.models / model), "--port", str(find_port(ADDRESS)), *FLAGS]
        request = StartRequest(launch_id="l", directory=str(self.directory), argv=argv, env={}, log_path=str(log))
        leader = self.around.machine.spawn(title="vllm", ppid=1, rss=1 << 20)
        instance = start_program(spec=self.spec, layout=self.layout, around=self.around, request=request, leader=leader)
        assert instance is not None
        self.logs[instance] = log
        return instance

    def stated(self, instance: Instance) -> dict[str, float]:
        return dict(read_recorded(self.logs[instance].read_bytes().decode().split("\n")).stated)

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture(scope="module", params=[1.0, 40.0], ids=["speed 1", "speed 40"])
def session(request, tmp_path_factory):
    """What each start lived through, and what its log states; keys as in the recordings."""
    host = Host(tmp_path_factory.mktemp("recorded"), speed=request.param)
    began = {
        "cold": host.start(1),
        "together": host.start(3),
        "warm": host.start(1),
        "new": host.start(1, model="Llama-3.1-8B"),
    }
    yield {name: [(one.lived, host.stated(one)) for one in starts] for name, starts in began.items()}
    host.close()


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, float]]:
    """Seconds of each phase as the logs have them; of three at once, their mean."""
    samples = read_samples()
    imports = measure_imports(samples)
    found = {
        warmth: {**measure_phases(samples[name]), "imports": imports["cold" if warmth == "cold" else "warm"]}
        for warmth, name in ALONE.items()
    }
    together = [{**measure_phases(samples[name]), "imports": imports[name]} for name in TOGETHER]
    return found | {"together": {phase: mean(each[phase] for each in together) for phase in PHASES}}


def near(wanted: float, *, phase: str):
    return pytest.approx(wanted, rel=TOLERANCE, abs=STAMP_S if phase in BY_STAMPS else 0.0)


@pytest.mark.parametrize("start", ["cold", "together", "warm", "new"])
class TestRecordedTimes:
    @pytest.mark.parametrize("phase", PHASES)
    def test_of_each_phase_are_lived_through(self, session, recorded, start, phase):
        for lived, _ in session[start]:
            assert lived[phase] == near(recorded[start][phase], phase=phase)

    @pytest.mark.parametrize("name", ["load", "dynamo", "graph", "compile", "init"])
    def test_are_stated_by_the_log(self, session, start, name):
        samples = read_samples()
        wanted = mean(samples[log].stated[name] for log in (TOGETHER if start == "together" else (ALONE[start],)))
        for _, stated in session[start]:
            assert stated[name] == pytest.approx(wanted, rel=TOLERANCE)

    def test_add_up_to_the_whole_start(self, session, recorded, start):
        for lived, _ in session[start]:
            assert sum(lived.values()) == pytest.approx(sum(recorded[start].values()), rel=TOLERANCE / 2)
