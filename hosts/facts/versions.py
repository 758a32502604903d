"""Version numbers of vLLM, with pre-releases, development and local builds, in the order of PEP 440."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_VERSION = re.compile(
    r"v?(?P<release>\d{1,6}(?:\.\d{1,6}){0,3})"
    r"(?:[.\-_]?(?P<pre>a|alpha|b|beta|c|rc|pre|preview)[.\-_]?(?P<pre_number>\d{0,6}))?"
    r"(?:[.\-_]?(?P<post>post|rev)[.\-_]?(?P<post_number>\d{0,6}))?"
    r"(?:[.\-_]?(?P<dev>dev)[.\-_]?(?P<dev_number>\d{0,9}))?"
    r"(?:\+(?P<local>[A-Za-z0-9.\-_]{1,64}))?",
    re.IGNORECASE | re.ASCII,
)
_PRE_RANK = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_FINAL = 3


@dataclass(frozen=True, order=True)
class VllmVersion:
    """Compares as PEP 440 does, except that the local part ("+cpu") does not count."""

    release: tuple[int, ...]
    stage: tuple[int, int]
    post: int
    dev: int
    local: str | None = field(compare=False)
    text: str = field(compare=False)

    @property
    def is_final(self) -> bool:
        """True for a released version, false for a release candidate or a development build."""
        return self.stage[0] == _FINAL and self.dev == _NO_DEV

    @property
    def is_cpu_build(self) -> bool:
        return self.local is not None and self.local.lower().startswith("cpu")

    def __str__(self) -> str:
        return self.text


_NO_DEV = 10**10


def parse_version(text: str) -> VllmVersion | None:
    """Read a version such as "0.32.0+cpu", "0.11.0rc1" or "0.25.2.dev17+g1234abc"; None where it is none."""
    match = _VERSION.fullmatch(text.strip()) if len(text) <= 128 else None
    if match is None:
        return None
    release = tuple(int(part) for part in match["release"].split("."))
    dev = int(match["dev_number"] or 0) if match["dev"] else _NO_DEV
    return VllmVersion(
        release=(*release, *(0,) * (4 - len(release))),
        stage=_stage(pre=match["pre"], number=match["pre_number"], post=match["post"], dev=match["dev"]),
        post=int(match["post_number"] or 0) if match["post"] else -1,
        dev=dev,
        local=match["local"],
        text=text.strip(),
    )


def _stage(*, pre: str | None, number: str | None, post: str | None, dev: str | None) -> tuple[int, int]:
    if pre is not None:
        return (_PRE_RANK[pre.lower()], int(number or 0))
    # A development build of 0.26.0 comes before its first alpha; one of 0.26.0.post1 comes after 0.26.0.
    return (-1, 0) if dev is not None and post is None else (_FINAL, 0)


def is_at_least(version: VllmVersion, floor: str) -> bool:
    """Tell whether `version` is `floor` or newer. Raises ValueError where `floor` is no version."""
    wanted = parse_version(floor)
    if wanted is None:
        raise ValueError(f"{floor!r} is not a version")
    return version >= wanted
