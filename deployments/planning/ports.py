"""Which port each instance listens on.

That a port is really free is proved on the host, by binding it, right before the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.planning.refusals import Refusal, RefusalCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deployments.planning.plan import RunningInstance, Taken
    from deployments.planning.spec import DeploymentSpec

AUTO_PORTS = range(8000, 10000)


def assign_ports(*, spec: DeploymentSpec, slots: Sequence[int], taken: Taken) -> Mapping[int, int] | list[Refusal]:
    """Return a port per slot.

    From a first port on, slot by slot, or for "auto" the lowest free ones of 8000 to 9999.
    """
    if spec.port != "auto":
        wanted = {slot: spec.port + slot for slot in slots}
        return wanted if not (held := sorted(set(wanted.values()) & taken.ports)) else [_taken(port) for port in held]
    free = [port for port in AUTO_PORTS if port not in taken.ports][: len(slots)]
    if len(free) < len(slots):
        return [
            Refusal(
                code=RefusalCode.NO_FREE_PORT,
                message=f"{len(slots)} ports are needed and {len(free)} of {AUTO_PORTS[0]} to"
                f" {AUTO_PORTS[-1]} are free on the host.",
                next_step="Stop instances that are not needed, or name a first port outside this range.",
                numbers={"wanted": len(slots), "have": len(free)},
            )
        ]
    return dict(zip(slots, free, strict=True))


def pass_on_ports(
    *, spec: DeploymentSpec, replaced: Mapping[int, RunningInstance], taken: Taken
) -> Mapping[int, int] | list[Refusal]:
    """Return a port per slot that is restarted: the one it has, or the one that its revision names where it is free."""
    if spec.port == "auto":
        return {slot: target.port for slot, target in replaced.items()}
    wanted = {slot: spec.port + slot for slot in replaced}
    held = sorted(port for slot, port in wanted.items() if port != replaced[slot].port and port in taken.ports)
    return [_taken(port) for port in held] or wanted


def _taken(port: int) -> Refusal:
    return Refusal(
        code=RefusalCode.PORT_TAKEN,
        message=f"Port {port} of the host is already in use.",
        next_step="Choose another first port, or set port to auto.",
        numbers={"port": port},
    )
