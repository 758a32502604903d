"""In which order instances start, so that none disturbs another while it measures or fills its GPU's memory.

    pinned   every KV cache has its bytes: all may start at once, as many side by side as cores and memory carry.
             Where it carries fewer at a time than there are and has no compile cache for these flags, one leader goes
             first: the rest follow when its engine is ready, and find the cache warm. Where it carries them all, each
             compiles for itself: that costs cores and no time (measured on a bare H200: three at once were ready after
             158 s, behind a leader after 216 s).
    rolling  of a restart: an instance takes the place of another; the next one begins when one before it serves.
    gated    a cache is measured from what is free: on one GPU one start at a time, the next one when the engine
             before it is ready. GPUs side by side.

The gate is vLLM's line `init engine (profile, create kv cache, warmup model) took` (0.8 to 0.33): from the snapshot of
free memory to that line nobody else may change the memory of that GPU (measured on an H200: three at once without
pinned bytes got 342,864, 9,312 and 10,672 tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from audit.canonical import canonical, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Mode = Literal["pinned", "gated", "rolling"]

# A start compiles and loads with about this many cores.
CORES_PER_START = 5
# Weights pass through the host's memory on their way to the GPU, with room for the page cache, in percent of their size.
LOADING_PERCENT = 120
# What decides neither compiled code nor captured graphs.
_NOT_COMPILED = frozenset({"--host", "--port", "--served-model-name", "--gpu-memory-utilization"})
# That the cache is pinned makes another compilation (measured, 0.25.1); how large it is does not count here.
_VALUE_NOT_COMPILED = frozenset({"--kv-cache-memory-bytes"})


@dataclass(frozen=True, kw_only=True)
class Starting:
    """One launch as its order sees it: its devices, whether its cache is pinned, the weights of all its workers."""

    launch_id: str
    devices: tuple[str, ...]
    pinned: bool
    weights: int


@dataclass(frozen=True, kw_only=True)
class StartOrder:
    """`after` names for a launch those whose engines must be ready, or which must have ended, before it begins."""

    mode: Mode
    side_by_side: int
    leader: str | None
    after: Mapping[str, tuple[str, ...]]


def order_starts(
    *, launches: Sequence[Starting], cores: int | None, memory_available: int | None, warm: bool
) -> StartOrder:
    """Decide the order. `warm` says that a launch like these has served on this host before, or that nobody need care."""
    side_by_side = count_side_by_side(launches=launches, cores=cores, memory_available=memory_available)
    if not all(launch.pinned for launch in launches):
        return StartOrder(mode="gated", side_by_side=side_by_side, leader=None, after=_one_on_each_device(launches))
    all_at_once = warm or side_by_side >= len(launches)
    leader = None if all_at_once or len(launches) < 2 else launches[0].launch_id
    after = {launch.launch_id: (leader,) for launch in launches[1:]} if leader else {}
    return StartOrder(mode="pinned", side_by_side=side_by_side, leader=leader, after=after)


def order_restarts(
    *, launches: Sequence[Starting], at_a_time: int, cores: int | None, memory_available: int | None, warm: bool
) -> StartOrder:
    """Decide the order of replacements, at most so many at a time: fewer where the host carries fewer, one where vLLM
    measures its cache. Unless `warm`, the first goes alone.
    """
    carried = count_side_by_side(launches=launches, cores=cores, memory_available=memory_available)
    pinned = all(launch.pinned for launch in launches)
    room = max(1, min(at_a_time, carried)) if pinned else 1
    ids = [launch.launch_id for launch in launches]
    leader = None if warm or room == 1 or len(ids) < 2 else ids[0]
    after = {ids[position]: (ids[position - room],) for position in range(room, len(ids))}
    if leader:
        after |= dict.fromkeys(ids[1:room], (leader,))
    return StartOrder(mode="rolling", side_by_side=room, leader=leader, after=after)


def count_side_by_side(*, launches: Sequence[Starting], cores: int | None, memory_available: int | None) -> int:
    """Return how many starts the host carries at a time; one where it is not known what it has."""
    by_cores = (cores or 0) // CORES_PER_START
    heaviest = max((launch.weights for launch in launches), default=0) * LOADING_PERCENT // 100
    by_memory = (memory_available or 0) // heaviest if heaviest else by_cores
    return max(1, min(by_cores, by_memory, len(launches)))


def waves(*, ids: Sequence[str], after: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the launches in steps, for people: each step waits for something of the step before it."""
    depth: dict[str, int] = {}
    for launch_id in ids:
        depth[launch_id] = 1 + max((depth.get(before, -1) for before in after.get(launch_id, ())), default=-1)
    return tuple(
        tuple(launch_id for launch_id in ids if depth[launch_id] == step)
        for step in range(max(depth.values(), default=-1) + 1)
    )


def compile_key(*, argv: Sequence[str], version: str, device: str) -> str:
    """Return what launches have in common that share vLLM's compile cache: version, GPU, program, model and flags."""
    words: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in _NOT_COMPILED:
            skip = True
        elif word in _VALUE_NOT_COMPILED:
            words.append(word)
            skip = True
        else:
            words.append(word)
    content: dict[str, Any] = {"argv": words, "version": version, "device": device}
    return digest(canonical(content, form=1))


def _one_on_each_device(launches: Sequence[Starting]) -> dict[str, tuple[str, ...]]:
    last: dict[str, str] = {}
    after: dict[str, tuple[str, ...]] = {}
    for launch in launches:
        before = tuple(dict.fromkeys(last[device] for device in launch.devices if device in last))
        if before:
            after[launch.launch_id] = before
        last.update(dict.fromkeys(launch.devices, launch.launch_id))
    return after
