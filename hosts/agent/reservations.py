"""Bytes of devices that launches have been promised, of every controller of this account: two cannot promise the same.

What is asked for is held from the launch's record on, long before vLLM allocates it, until the launch ended. The check and
the record are one step, under one lock of the host.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .launches import Standing, judge, read_launches
from .refusal import Refusal
from .state_root import StateRoot
from .system import DeviceUse, System

CPU = "cpu"


def lock_path(root: StateRoot) -> str:
    return os.path.join(root.boot_directory, "reservations.lock")


def read_reserved(args: Mapping[str, Any]) -> Dict[str, int]:
    """The argument `reserved_bytes`: whole bytes by device uuid; anything else is passed over."""
    given = args.get("reserved_bytes")
    if not isinstance(given, dict):
        return {}
    return {
        str(uuid): size
        for uuid, size in given.items()
        if isinstance(size, int) and not isinstance(size, bool) and size > 0
    }


def refuse_where_promised(system: System, root: StateRoot, *, launch_id: str, wanted: Dict[str, int]) -> None:
    """DEVICE_FULL where the promises to others, what nobody of ours holds, and this one are more than the device has."""
    if not wanted:
        return
    processes = system.processes()
    standings = [judge(launch, processes, uid=system.uid) for launch in read_launches(root)]
    others = [one for one in standings if one.live and one.launch.record.launch_id != launch_id]
    uses = {use.uuid: use for use in system.device_use()}
    for uuid, size in wanted.items():
        total, foreign = _capacity(system, uses, uuid, others)
        if total is None:
            continue
        promised = sum(one.launch.record.reserved_bytes.get(uuid, 0) for one in others)
        if promised + foreign + size > total:
            raise _full(uuid=uuid, size=size, promised=promised, foreign=foreign, total=total, others=others)


def _capacity(system: System, uses: Dict[str, DeviceUse], uuid: str, others: Sequence[Standing]) -> Tuple[Any, int]:
    """The device's bytes (None: not known) and those that processes outside all launches hold.

    Memory of the host itself is not divided by process here: promises alone count there.
    """
    if uuid == CPU:
        return system.memory()[0], 0
    use = uses.get(uuid)
    if use is None:
        return None, 0
    ours = {process.pid for one in others for process in one.processes}
    return use.total, sum(held or 0 for pid, held in use.processes if pid not in ours)


def _full(*, uuid: str, size: int, promised: int, foreign: int, total: int, others: Sequence[Standing]) -> Refusal:
    holders: List[Dict[str, str]] = [
        {"launch_id": one.launch.record.launch_id, "controller": one.launch.record.controller}
        for one in others
        if uuid in one.launch.record.reserved_bytes
    ]
    missing = promised + foreign + size - total
    return Refusal(
        "DEVICE_FULL",
        f"{size} bytes are asked for on {uuid}; {promised} are promised to {len(holders)} other launches and {foreign} held by"
        f" other processes: {missing} of {total} are missing.",
        "Stop something there, or plan again: another fleetadmin of this account may use the device too.",
        {
            "device": uuid,
            "wanted": size,
            "promised": promised,
            "foreign": foreign,
            "total": total,
            "missing": missing,
            "holders": holders[:16],
        },
    )
