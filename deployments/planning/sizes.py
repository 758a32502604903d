"""Sizes in bytes: reading "40GiB" and "64M", and writing GiB for people."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3
_UNITS = {
    "": 1,
    "B": 1,
    "K": KIB,
    "KIB": KIB,
    "M": MIB,
    "MIB": MIB,
    "G": GIB,
    "GIB": GIB,
    "T": GIB * KIB,
    "TIB": GIB * KIB,
}
# Powers of ten are written with a "B" after the letter, as disks are sold.
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(?P<whole>\d{1,15})(?:\.(?P<fraction>\d{1,6}))?\s?(?P<unit>[A-Za-z]{0,3})", re.ASCII)
MAX_SIZE = 2**62


def parse_size(text: str) -> int | None:
    """Return the bytes of "64MiB", "40 GiB", "1.5G" (1024-based) or "40GB" (1000-based).

    None where it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match["unit"].upper() not in _UNITS:
        return None
    unit = _UNITS[match["unit"].upper()]
    fraction = match["fraction"] or ""
    size = int(match["whole"]) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
    return size if size <= MAX_SIZE else None


def format_gib(size: int) -> str:
    """Write bytes as GiB with two decimals, without floating point: 43367006208 becomes "40.39"."""
    sign = "-" if size < 0 else ""
    hundredths = (abs(size) * 100 + GIB // 2) // GIB
    return f"{sign}{hundredths // 100:,}.{hundredths % 100:02d}"


def format_size(size: int) -> str:
    """Write bytes in the largest unit that divides them, so that parse_size gives the same number.

    "64MiB".
    """
    for unit, factor in (("TiB", GIB * KIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
