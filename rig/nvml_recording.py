"""What NVIDIA's library was asked and what it answered, kept as JSON and given again without a GPU.

    NvmlRecorder  stands in front of pynvml and writes down every call      → to_json()
    NvmlReplay    answers as a recording does, and raises on anything else  ← read_replay()

A recording: {"origin", "constants": {name: value}, "calls": [{"function", "arguments", "answer"}]}. A handle is
written as the call that gave it, {"handle": "gpu 0"} or {"handle": "gpu 0 instance 2"}; an answer is
{"value": …} or {"error": {"code", "text"}} with the code of NVMLError.
"""

from __future__ import annotations

import contextlib
import json
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from hosts.agent import devices, nvml
from hosts.agent.views import device_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PLAIN = (type(None), bool, int, float, str)
HANDLE_NAMES: Mapping[str, Callable[..., str]] = {
    "nvmlDeviceGetHandleByIndex": lambda index: f"gpu {index}",
    "nvmlDeviceGetMigDeviceHandleByIndex": lambda card, number: f"{card['handle']} instance {number}",
}


class NotRecordedError(Exception):
    """The recording has no answer to this. Not an AttributeError: those pass for "this driver cannot"."""


class NvmlRecorder:
    """A module-like object that passes everything on to `library` and notes calls and answers."""

    def __init__(self, library: Any, *, origin: str) -> None:
        self._library = library
        self._origin = origin
        self._constants: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._handles: list[tuple[Any, str]] = []  # kept alive, so that an id() is not used twice

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if isinstance(found, type):
            return found
        if not callable(found):
            self._constants[name] = found
            return found
        return lambda *arguments: self._call(name, found, arguments)

    def to_json(self) -> dict[str, Any]:
        return {"origin": self._origin, "constants": dict(self._constants), "calls": list(self._calls)}

    def _call(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        asked = [self._encode_argument(argument) for argument in arguments]
        entry: dict[str, Any] = {"function": name, "arguments": asked}
        self._calls.append(entry)
        try:
            value = function(*arguments)
        except self._library.NVMLError as error:
            entry["answer"] = {"error": {"code": getattr(error, "value", None), "text": str(error)}}
            raise
        except (AttributeError, TypeError) as error:  # this pynvml does not know the call in this form
            entry["answer"] = {"error": {"code": None, "text": str(error), "python": type(error).__name__}}
            raise
        if name in HANDLE_NAMES:
            self._handles.append((value, HANDLE_NAMES[name](*asked)))
            entry["answer"] = {"value": {"handle": self._handles[-1][1]}}
        else:
            entry["answer"] = {"value": encode_value(value)}
        return value

    def _encode_argument(self, argument: Any) -> Any:
        for handle, name in self._handles:
            if handle is argument:
                return {"handle": name}
        if isinstance(argument, PLAIN):
            return argument
        raise TypeError(f"an argument of type {type(argument).__name__} cannot be recorded")


def encode_value(value: Any) -> Any:
    """JSON of an answer: plain values, bytes, sequences, and structures by their fields.

    A list and a tuple give the same; both come back as a list.
    """
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, list | tuple):
        return [encode_value(item) for item in value]
    names = [field[0] for field in getattr(type(value), "_fields_", ())] or list(vars(value))
    return {"fields": {name: encode_value(getattr(value, name)) for name in names}}


def decode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "handle" in value:
        return value["handle"]
    if "bytes" in value:
        return value["bytes"].encode("latin-1")
    return SimpleNamespace(**{name: decode_value(item) for name, item in value["fields"].items()})


class ReplayedNvmlError(Exception):
    """In the place of pynvml.NVMLError. `value` is its code."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.value = code


PYTHON_ERRORS: Mapping[str, type[Exception]] = {"AttributeError": AttributeError, "TypeError": TypeError}


class NvmlReplay:
    """A module-like object that answers as recorded. Handles are their names.

    The same question asked several times gets its answers in order, and the last one from then on.
    """

    NVMLError = ReplayedNvmlError

    def __init__(self, recording: Mapping[str, Any]) -> None:
        self._constants = dict(recording["constants"])
        self._answers: dict[str, list[dict[str, Any]]] = {}
        for call in recording["calls"]:
            key = self._key(call["function"], [decode_value(item) for item in call["arguments"]])
            self._answers.setdefault(key, []).append(call["answer"])

    def __getattr__(self, name: str) -> Any:
        if name in self._constants:
            return self._constants[name]
        if name.startswith("nvml"):
            return lambda *arguments: self._answer(name, arguments)
        raise NotRecordedError(f"{name} is not in the recording")

    @staticmethod
    def _key(function: str, arguments: list[Any]) -> str:
        return f"{function}({', '.join(json.dumps(argument) for argument in arguments)})"

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        key = self._key(name, list(arguments))
        answers = self._answers.get(key)
        if not answers:
            raise NotRecordedError(f"{key} is not in the recording")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        error = answer.get("error")
        if error is None:
            return decode_value(answer["value"])
        if error.get("python"):
            raise PYTHON_ERRORS[error["python"]](error["text"])
        raise ReplayedNvmlError(error["code"], error["text"])


@contextlib.contextmanager
def in_place_of_pynvml(library: NvmlRecorder | NvmlReplay | ModuleType | None) -> Iterator[None]:
    """Let the agent's NVML code ask `library`, which is initialised anew; afterwards all is as before."""
    before, state = nvml.pynvml, dict(nvml._STATE)  # noqa: SLF001 - whether nvmlInit was called is kept there
    nvml.pynvml = library
    nvml._STATE.clear()  # noqa: SLF001
    try:
        yield
    finally:
        nvml.pynvml = before
        nvml._STATE.clear()  # noqa: SLF001
        nvml._STATE.update(state)  # noqa: SLF001


def read_devices() -> dict[str, Any]:
    """What the agent says about this machine's devices: {"gpus": as in facts, "devices": [DeviceUse]}."""
    gpus = devices.read_facts()
    return json.loads(json.dumps({"gpus": gpus, "devices": [device_view(use) for use in devices.read_use()]}))


def record_devices(*, origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(recording, what the agent made of it) of this machine, now."""
    recorder = NvmlRecorder(nvml.pynvml, origin=origin)
    with in_place_of_pynvml(recorder):
        found = read_devices()
    return recorder.to_json(), found


def replay_devices(recording: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent makes of a recording. Raises NotRecordedError where it asks for more."""
    with in_place_of_pynvml(NvmlReplay(recording)):
        return read_devices()
