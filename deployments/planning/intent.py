"""The parts of a plan's intent, and what it presupposes: written alike by starts, stops and restarts.

Only text, whole numbers, true/false and null; the names are those of the stored bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deployments.planning.arguments import build_argv, build_environment
from deployments.planning.plan import HostRef, Precondition, RevisionRef, RunningInstance
from deployments.planning.retries import retry_intent
from deployments.planning.start_order import StartOrder, compile_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployments.planning.decisions import Decided, Launching
    from deployments.planning.placement import Need
    from deployments.planning.spec import DeploymentSpec

# A plan is made from facts younger than `host_checks.MAX_FACTS_AGE_S`; at its run they may be this old.
MAX_FACTS_AGE_AT_RUN_S = 3600
# Seconds between the first SIGTERM and the group's SIGKILL, and before the second SIGTERM: vLLM swallows the first one
# while it starts.
STOP_GRACE_S = 30
SECOND_TERM_S = 10


def slot_key(*, deployment_id: int | str, slot: int) -> str:
    """Return the name under which the agent keeps one live launch per slot; a file name on the host."""
    return f"{deployment_id}-{slot}"


def head(*, kind: str, revision: RevisionRef, host: HostRef) -> dict[str, Any]:
    return {
        "form": 1,
        "kind": kind,
        "deployment": {"id": revision.deployment_id, "name": revision.deployment_name},
        "revision": {"id": revision.id, "number": revision.number, "digest": revision.digest},
        "host": host_intent(host),
    }


def host_intent(host: HostRef) -> dict[str, Any]:
    return {
        "id": host.id,
        "name": host.name,
        "machine_id": host.machine_id,
        "host_key_fingerprint": host.host_key_fingerprint,
    }


def order_intent(order: StartOrder) -> dict[str, Any]:
    return {
        "mode": order.mode,
        "side_by_side": order.side_by_side,
        "leader": order.leader,
        "after": {launch_id: list(before) for launch_id, before in order.after.items()},
    }


def launch_intent(
    *, launch: Launching, spec: DeploymentSpec, revision: RevisionRef, decided: Decided
) -> dict[str, Any]:
    installation, version = decided.vllm.installation, decided.vllm.version
    room = decided.placement.devices[launch.slot][0]
    argv = build_argv(spec=spec, installation=installation, version=version, launch=launch.shape)
    return {
        "launch_id": launch.launch_id,
        "instance": {"name": f"{revision.deployment_name}-{launch.slot}", "slot": launch.slot},
        "slot_key": slot_key(deployment_id=revision.deployment_id, slot=launch.slot),
        "devices": list(launch.shape.devices),
        "address": spec.address,
        "port": launch.shape.port,
        "argv": argv,
        "compile_key": compile_key(argv=argv, version=str(version), device=room.device.name),
        "env": build_environment(spec=spec, version=version, launch=launch.shape),
        "secrets": dict(sorted(spec.secrets.items())),
        "reserved_bytes": dict.fromkeys(launch.shape.devices, launch.need.reserved),
        "served_name": spec.served_model_name,
        "task": spec.task,
        "model_path": spec.model,
        "executable": installation.executable or installation.python,
        "vllm_version": str(version),
        "retry": retry_intent(launch.retry_id),
        "memory": _memory_intent(launch.need),
        "expected": {
            "max_model_len": spec.max_model_len,
            "kv_tokens": launch.need.kv_tokens,
            "full_requests": launch.need.full_requests,
        },
    }


def _memory_intent(need: Need) -> dict[str, Any]:
    """Bytes on each of its devices, term by term (the sum is the peak), and the range of what it holds once ready."""
    low, high = need.ready_range
    return {
        "weights": need.weights.bytes,
        "kv_cache": need.kv_cache,
        "activations": need.overhead.activations.bytes,
        "runtime": need.overhead.runtime.bytes,
        "graphs": need.overhead.graphs.bytes,
        "low": low,
        "high": high,
        "measured": need.overhead.runtime.source == "measured",
        "pinned": need.pinned is not None,
    }


def stop_intent(
    target: RunningInstance, *, reason: str, grace_s: int = STOP_GRACE_S, second_term_s: int = SECOND_TERM_S
) -> dict[str, Any]:
    """The end of one launch; both times are seconds."""
    return {
        "launch_id": target.launch_id,
        "instance": {"name": target.instance, "slot": target.slot},
        "slot_key": target.slot_key,
        "devices": list(target.devices),
        "address": target.address,
        "port": target.port,
        "reserved_bytes": dict(sorted(target.reserved.items())),
        "grace_s": grace_s,
        "second_term_s": second_term_s,
        "reason": reason,
    }


def identity(host: HostRef) -> tuple[Precondition, ...]:
    return (
        Precondition(code="host_key", subject=host.name, wanted=host.host_key_fingerprint),
        Precondition(code="machine_id", subject=host.name, wanted=host.machine_id),
    )


def start_preconditions(
    *,
    host: HostRef,
    spec: DeploymentSpec,
    decided: Decided,
    launches: Sequence[Launching],
    revision: RevisionRef,
) -> tuple[Precondition, ...]:
    vllm = decided.vllm
    executable = vllm.installation.executable or vllm.installation.python
    found = [
        *identity(host),
        Precondition(code="facts_age_s", subject=host.name, wanted=MAX_FACTS_AGE_AT_RUN_S),
        Precondition(code="vllm_version", subject=executable, wanted=str(vllm.version)),
        Precondition(code="model_present", subject=spec.model, wanted=spec.model),
    ]
    for launch in launches:
        key = slot_key(deployment_id=revision.deployment_id, slot=launch.slot)
        found.append(Precondition(code="slot_free", subject=key, wanted=launch.launch_id, launch_id=launch.launch_id))
        found.append(
            Precondition(code="port_free", subject=spec.address, wanted=launch.shape.port, launch_id=launch.launch_id)
        )
        found += [
            Precondition(code="free_bytes", subject=uuid, wanted=launch.need.reserved, launch_id=launch.launch_id)
            for uuid in launch.shape.devices
        ]
    return tuple(found)


def launches_known(targets: Sequence[RunningInstance]) -> tuple[Precondition, ...]:
    """The host knows what is to be ended."""
    return tuple(
        Precondition(code="launch_known", subject=target.slot_key, wanted=target.launch_id, launch_id=target.launch_id)
        for target in targets
    )
