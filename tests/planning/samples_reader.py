"""Reads the recorded logs as lines, the way they come from a host: split at line feeds only."""

from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"


def read_sample(name: str) -> list[str]:
    return (SAMPLES / name).read_bytes().decode("utf-8", "replace").split("\n")
