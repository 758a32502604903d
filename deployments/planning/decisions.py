"""The choices that a start or a restart makes: which vLLM, which devices and bytes, which ports.

Every question is asked, also after a no, so that a refusal names all that stands in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deployments.planning.arguments import (
    LaunchShape,
    build_argv,
    can_pin_kv_cache,
    check_arguments,
    shares_compile_cache,
)
from deployments.planning.host_choices import ChosenVllm, choose_model, choose_vllm, read_figures
from deployments.planning.placement import ModelFigures, Need, Placement, select_devices
from deployments.planning.plan import HostRef, Note, Taken
from deployments.planning.refusals import Refusal
from deployments.planning.retries import may_need_retry
from deployments.planning.start_order import Starting, compile_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.model import Device, HostFacts
    from hosts.facts.versions import VllmVersion

    # Asked with the allowed devices, what is known of the model, and whether this vLLM can be given the bytes of its cache.
    Place = Callable[[Sequence[Device], ModelFigures, bool], Placement | list[Refusal]]


@dataclass(frozen=True, kw_only=True)
class Launching:
    """One launch, decided: everything that its part of the intent and its bar need."""

    launch_id: str
    slot: int
    shape: LaunchShape
    need: Need
    retry_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Every choice of a start: which vLLM, which devices and bytes, which ports."""

    vllm: ChosenVllm
    placement: Placement
    ports: Mapping[int, int]
    notes: tuple[Note, ...]
    # Below it each slot has a compile cache of its own; None where one is shared.
    caches: str | None = None

    def launches(self, *, ids: Callable[[], str]) -> list[Launching]:
        """One per slot, each with a new id, and one more for its second try where that may be needed."""
        made = [self._launch(slot=slot, launch_id=ids()) for slot in sorted(self.ports)]
        return [replace(launch, retry_id=ids()) for launch in made] if may_need_retry(self.vllm.version) else made

    def _launch(self, *, slot: int, launch_id: str) -> Launching:
        need = self.placement.needs[slot]
        shape = LaunchShape(
            devices=tuple(room.device.uuid for room in self.placement.devices[slot]),
            port=self.ports[slot],
            utilization=None if need.share is None else format(need.share.normalize(), "f"),
            kv_cache_bytes=need.pinned,
            cache_root=None if self.caches is None else f"{self.caches}/{slot}",
        )
        return Launching(launch_id=launch_id, slot=slot, shape=shape, need=need)


def decide(
    *,
    spec: DeploymentSpec,
    host: HostRef,
    facts: HostFacts,
    taken: Taken,
    allow_code_loading: bool,
    place: Place,
    caches_of: int | str,
    ports: Mapping[int, int] | list[Refusal],
) -> Decided | list[Refusal]:
    """Return all choices or all refusals. `caches_of`: the deployment whose slots may need compile caches of their own."""
    vllm = choose_vllm(spec=spec, host=host, facts=facts)
    version = None if isinstance(vllm, Refusal) else vllm.version
    model, model_reasons = choose_model(spec=spec, host=host, facts=facts)
    argument_reasons, notes = check_arguments(spec=spec, version=version, allow_code_loading=allow_code_loading)
    figures, figure_notes = read_figures(spec=spec, model=model)
    devices, device_reasons = select_devices(spec=spec, facts=facts)
    if devices and not isinstance(vllm, Refusal):
        key = _expected_key(spec=spec, vllm=vllm, device=devices[0])
        figures = replace(figures, measured_overhead=taken.overheads.get(key))
    placement: Placement | list[Refusal] = []
    if not device_reasons:
        placement = place(devices, figures, version is None or can_pin_kv_cache(version))
    reasons = [
        *([vllm] if isinstance(vllm, Refusal) else ()),
        *model_reasons,
        *argument_reasons,
        *device_reasons,
        *(placement if isinstance(placement, list) else ()),
        *(ports if isinstance(ports, list) else ()),
    ]
    if reasons or isinstance(vllm, Refusal) or isinstance(placement, list) or isinstance(ports, list):
        return reasons
    caches, cache_notes = _find_caches(version=vllm.version, facts=facts, deployment_id=caches_of)
    return Decided(
        vllm=vllm, placement=placement, ports=ports, notes=(*notes, *figure_notes, *cache_notes), caches=caches
    )


def _find_caches(
    *, version: VllmVersion, facts: HostFacts, deployment_id: int | str
) -> tuple[str | None, tuple[Note, ...]]:
    if shares_compile_cache(version):
        return None, ()
    if facts.state_root is not None:
        return f"{facts.state_root}/cache/{deployment_id}", ()
    text = f"vLLM {version} can damage a compile cache that several starts share, and where to give each its own is not"
    text += " known: refresh the host's facts."
    return None, (Note(code="COMPILE_CACHE_SHARED", message=text, level="warning"),)


def _expected_key(*, spec: DeploymentSpec, vllm: ChosenVllm, device: Device) -> str:
    """The compile key that launches of this plan will have; port, share and size of the cache are no part of it."""
    pinned = 1 if can_pin_kv_cache(vllm.version) else None
    shape = LaunchShape(devices=(device.uuid,), port=0, utilization="0", kv_cache_bytes=pinned)
    argv = build_argv(spec=spec, installation=vllm.installation, version=vllm.version, launch=shape)
    return compile_key(argv=argv, version=str(vllm.version), device=device.name)


def starting(launch: Launching, *, workers: int) -> Starting:
    """The launch as its order sees it."""
    return Starting(
        launch_id=launch.launch_id,
        devices=launch.shape.devices,
        pinned=launch.need.pinned is not None,
        weights=launch.need.weights.bytes * workers,
    )
