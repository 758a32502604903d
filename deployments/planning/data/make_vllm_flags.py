"""Make vllm_flags.json from vllm-flags.txt, both beside this file.

Run by hand after the text was extended; a test compares them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
VERSION = re.compile(r"(?:^|; )(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?):")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def sort_key(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def read_line(line: str) -> tuple[str, dict[str, bool]] | None:
    """Return a flag and, for each sample at which its entry changed, whether it is there."""
    flag, bar, history = line.partition(" | ")
    if not bar or FLAG.fullmatch(flag) is None:
        return None
    parts = VERSION.split(history.strip())
    return flag, {version: value.strip() != "-" for version, value in zip(parts[1::2], parts[2::2], strict=True)}


def fill_holes(marks: list[bool]) -> list[bool]:
    """Treat absence between two samples that have the flag as a gap of the sampling, not of vLLM."""
    if True not in marks:
        return marks
    first = marks.index(True)
    last = len(marks) - 1 - marks[::-1].index(True)
    return [mark or first <= index <= last for index, mark in enumerate(marks)]


def make_table(text: str) -> dict[str, object]:
    entries = [entry for line in text.splitlines() if (entry := read_line(line)) is not None]
    samples = sorted({version for _, changes in entries for version in changes}, key=sort_key)
    flags: dict[str, str] = {}
    for flag, changes in entries:
        marks: list[bool] = []
        for sample in samples:
            marks.append(changes.get(sample, marks[-1] if marks else False))
        flags[flag] = "".join("1" if mark else "0" for mark in fill_holes(marks))
    return {"samples": samples, "flags": dict(sorted(flags.items()))}


def main() -> None:
    table = make_table((HERE / "vllm-flags.txt").read_text("utf-8"))
    (HERE / "vllm_flags.json").write_text(json.dumps(table, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
