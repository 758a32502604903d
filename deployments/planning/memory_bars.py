"""How each device's memory is filled after a plan, as data for the bars on the plan page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.planning.plan import MemoryBar, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployments.planning.placement import DeviceRoom, Need


def build_bars(
    *, rooms: Sequence[DeviceRoom], needs: Sequence[tuple[str, tuple[str, ...], Need]]
) -> tuple[MemoryBar, ...]:
    """Return one bar per device of the plan.

    Its segments add up to the device's total. `needs`: launch id, devices, need.
    """
    unique = {room.device.uuid: room for room in rooms}
    return tuple(_bar(room=room, needs=needs) for room in unique.values())


def _bar(*, room: DeviceRoom, needs: Sequence[tuple[str, tuple[str, ...], Need]]) -> MemoryBar:
    segments = [
        Segment(kind="foreign", bytes=room.foreign, label="other processes"),
        Segment(kind="ours", bytes=room.ours, label="running instances"),
    ]
    for launch_id, devices, need in needs:
        if room.device.uuid in devices:
            segments += [
                Segment(kind="weights", bytes=need.weights.bytes, label="weights", launch_id=launch_id),
                Segment(kind="kv_cache", bytes=need.kv_cache, label="KV cache", launch_id=launch_id),
                Segment(kind="overhead", bytes=need.overhead.bytes, label="overhead", launch_id=launch_id),
            ]
    segments.append(Segment(kind="reserve", bytes=room.reserve, label="kept free"))
    rest = room.total - sum(segment.bytes for segment in segments)
    segments.append(Segment(kind="free", bytes=rest, label="free"))
    return MemoryBar(
        device=room.device.uuid,
        name=room.device.name,
        total=room.total,
        segments=tuple(segment for segment in segments if segment.bytes > 0),
    )
