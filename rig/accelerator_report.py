"""The steps of a trial with their seconds: printed as they come, written whole after each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class NotAsItShouldBeError(Exception):
    """What a step saw is not what it must see. The text says both."""


class Report:
    """Steps and figures. `limit_s` bounds the whole trial, counted from here."""

    def __init__(self, path: Path, *, limit_s: float) -> None:
        self._path = path
        self._began = time.monotonic()
        self._limit_s = limit_s
        self.steps: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}

    @property
    def left_s(self) -> float:
        return self._limit_s - (time.monotonic() - self._began)

    @property
    def failed(self) -> list[str]:
        return [step["name"] for step in self.steps if not step["ok"]]

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.1f}s  {text}\n")
        sys.stdout.flush()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Time one step and keep what it puts into the mapping given.

        Any exception is written down as the reason of its failure; the trial goes on.
        """
        entry: dict[str, Any] = {"name": name, "ok": True, "seconds": None}
        self.steps.append(entry)
        self.say(f"── {name}")
        began = time.monotonic()
        try:
            yield entry
        except Exception as error:  # noqa: BLE001 - the later steps are worth having whatever this one met
            entry["ok"] = False
            entry["reason"] = f"{type(error).__name__}: {error}"[:2000]
            if not isinstance(error, NotAsItShouldBeError):
                traceback.print_exc(limit=8)
        finally:
            entry["seconds"] = round(time.monotonic() - began, 3)
            self.write()
        told = {key: value for key, value in entry.items() if key not in {"name", "ok", "seconds", "reason"}}
        self.say(f"{'ok ' if entry['ok'] else 'NOT OK'} {name} ({entry['seconds']} s) {json.dumps(told)[:1500]}")
        if not entry["ok"]:
            self.say(f"   {entry['reason']}")

    def write(self) -> None:
        body = {"failed": self.failed, "figures": self.figures, "steps": self.steps}
        write_json(self._path, body)


def require(condition: object, text: str) -> None:
    if not condition:
        raise NotAsItShouldBeError(text)


def write_json(path: Path, body: object) -> None:
    """Whole or not at all, so that an end in the middle leaves the last good one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    os.replace(part, path)  # noqa: PTH105
