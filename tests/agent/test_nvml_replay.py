"""The agent's reading of NVML against recorded answers.

samples/nvml-NAME.json is a recording (its `origin` says of what), samples/nvml-NAME.facts.json what the agent
made of it then. nvml-synthetic is no machine's: two cards, one cut up by MIG, written after NVML's manual by
tests/agent/synthetic_nvml.py.
"""

from __future__ import annotations

import copy
import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from hosts.agent import nvml
from rig.nvml_recording import (
    NotRecordedError,
    NvmlRecorder,
    NvmlReplay,
    decode_value,
    encode_value,
    in_place_of_pynvml,
    read_devices,
    replay_devices,
)
from tests.agent.synthetic_nvml import SyntheticNvml

SAMPLES = Path(__file__).with_name("samples")
RECORDINGS = sorted(path.stem for path in SAMPLES.glob("nvml-*.json") if not path.stem.endswith(".facts"))


def read(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text("utf-8"))


@pytest.fixture
def recording() -> dict[str, Any]:
    return read("nvml-synthetic")


class TestReplay:
    @pytest.mark.parametrize("name", RECORDINGS)
    def test_gives_the_facts_of_the_recorded_machine(self, name: str) -> None:
        assert replay_devices(read(name)) == read(f"{name}.facts")

    def test_is_no_copy_of_the_expected_facts(self, recording: dict[str, Any]) -> None:
        for call in recording["calls"]:
            if call["function"] == "nvmlDeviceGetName":
                call["answer"] = {"value": {"bytes": "Another card"}}
        names = {device["name"] for device in replay_devices(recording)["gpus"]["devices"]}
        assert names == {"Another card"}

    @pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetCount"])
    def test_raises_on_a_call_that_was_not_recorded(self, recording: dict[str, Any], function: str) -> None:
        left = copy.deepcopy(recording)
        left["calls"] = [call for call in left["calls"] if call["function"] != function]
        with pytest.raises(NotRecordedError, match=function):
            replay_devices(left)

    def test_raises_on_other_arguments_and_on_an_unknown_constant(self, recording: dict[str, Any]) -> None:
        library = NvmlReplay(recording)
        with pytest.raises(NotRecordedError, match=r"nvmlDeviceGetHandleByIndex\(7\)"):
            library.nvmlDeviceGetHandleByIndex(7)
        with pytest.raises(NotRecordedError, match="NVML_CLOCK_SM"):
            _ = library.NVML_CLOCK_SM

    def test_gives_changing_answers_in_order_and_then_the_last(self) -> None:
        call = {"function": "nvmlDeviceGetPowerUsage", "arguments": [{"handle": "gpu 0"}]}
        calls = [{**call, "answer": {"value": watts}} for watts in (10, 20)]
        library = NvmlReplay({"constants": {}, "calls": calls})
        assert [library.nvmlDeviceGetPowerUsage("gpu 0") for _ in range(3)] == [10, 20, 20]


class TestRecording:
    def test_is_the_sample_that_lies_here(self, recording: dict[str, Any]) -> None:
        recorder = NvmlRecorder(SyntheticNvml(), origin=recording["origin"])
        with in_place_of_pynvml(recorder):
            found = read_devices()
        assert json.loads(json.dumps(recorder.to_json())) == recording
        assert found == read("nvml-synthetic.facts")

    def test_leaves_the_agent_with_the_library_it_had(self, recording: dict[str, Any]) -> None:
        before = nvml.pynvml
        with pytest.raises(NotRecordedError):
            replay_devices({"constants": {}, "calls": []})
        replay_devices(recording)
        assert nvml.pynvml is before

    def test_keeps_fields_of_structures_bytes_and_sequences(self) -> None:
        class Rates(ctypes.Structure):
            _fields_ = [("gpu", ctypes.c_uint), ("name", ctypes.c_char * 8)]

        found = decode_value(json.loads(json.dumps(encode_value([Rates(7, b"card"), (1, None)]))))
        assert (found[0].gpu, found[0].name, found[1]) == (7, b"card", [1, None])

    def test_refuses_an_argument_that_it_could_not_name_later(self) -> None:
        with pytest.raises(TypeError, match="object"):
            NvmlRecorder(SyntheticNvml(), origin="").nvmlDeviceGetName(object())
