"""What devices hold now, laid over facts that are minutes old."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hosts.facts.model import HostFacts


def with_uses(facts: HostFacts, uses: Mapping[str, int]) -> HostFacts:
    """Return the facts with the bytes in use per device uuid that were seen later; the other devices as they were."""
    devices = tuple(
        replace(device, memory_used=uses[device.uuid]) if device.uuid in uses else device for device in facts.devices
    )
    return replace(facts, devices=devices)
