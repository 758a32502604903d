"""Who holds what: bytes of devices and ports of hosts, from the plan until the launch has ended."""

import json
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, Max, OuterRef, QuerySet, Sum

from deployments.models import Deployment, Launch, PortReservation, Reservation
from deployments.planning.intent import slot_key
from deployments.planning.plan import RunningInstance, Taken
from deployments.planning.retries import planned_launch
from deployments.planning.states import LaunchState
from hosts.models import Host


def lock_host(host: Host) -> None:
    """Serialise planners of one host until the transaction ends."""
    Host.objects.select_for_update().get(pk=host.pk)


def holding(launches: QuerySet[Launch]) -> QuerySet[Launch]:
    """Those that hold something on their host: alive as far as is known, or failed with processes left behind."""
    held = PortReservation.objects.filter(launch=OuterRef("pk"), until__isnull=True)
    return launches.filter(Exists(held))


def live_launches(deployment: Deployment) -> QuerySet[Launch]:
    """Launches that hold something on their host, those planned but not started included."""
    return holding(Launch.objects.filter(deployment=deployment)).select_related(
        "host", "instance", "revision", "revision__deployment"
    )


def taken(host: Host, deployment: Deployment) -> Taken:
    """What the ledgers say is spoken for on this host."""
    reserved = (
        Reservation.objects.filter(device__host=host, until__isnull=True)
        .values_list("device__uuid")
        .annotate(held=Sum("bytes"))
    )
    ports = PortReservation.objects.filter(host=host, until__isnull=True).values_list("port", flat=True)
    served = Launch.objects.filter(host=host, ready_at__isnull=False).values_list("compile_key", flat=True)
    return Taken(
        compiled=frozenset(served.distinct().order_by()),
        overheads=measured_overheads(),
        ports=frozenset(ports),
        reserved=dict(reserved),
        instances=tuple(running_instance(launch) for launch in live_launches(deployment).filter(host=host)),
    )


def measured_overheads() -> dict[str, int]:
    """By compile key, the most that a launch held beside weights and KV cache when it was ready, anywhere."""
    measured = Launch.objects.filter(measured_overhead__isnull=False).exclude(compile_key="").order_by()
    return dict(measured.values_list("compile_key").annotate(most=Max("measured_overhead")))


def running_instance(launch: Launch) -> RunningInstance:
    held = launch.reservations.filter(until__isnull=True).values_list("device__uuid", "bytes")
    return RunningInstance(
        launch_id=str(launch.pk),
        instance=launch.instance.name,
        slot=launch.instance.slot,
        slot_key=slot_key(deployment_id=launch.deployment_id, slot=launch.instance.slot),
        devices=tuple(launch.ranks.values_list("device__uuid", flat=True)),
        port=launch.port,
        address=launch.address,
        reserved=dict(held),
        revision_number=launch.revision.number,
        processes=tuple(launch.processes) if launch.state == LaunchState.ORPHANED else (),
    )


@transaction.atomic
def release(launch: Launch, *, now: datetime) -> None:
    """The launch ended: what it held is free, or its heir's."""
    launch.reservations.filter(until__isnull=True).update(until=now)
    launch.ports.filter(until__isnull=True).update(until=now)
    for heir in launch.heirs.filter(state=LaunchState.PLANNED).select_related("plan"):
        hand_over(heir, now=now)


def hand_over(heir: Launch, *, now: datetime) -> None:
    """From now on the heir holds its port and all of its bytes itself."""
    intent = json.loads(bytes(heir.plan.intent))
    planned = planned_launch(intent, str(heir.pk))
    for uuid, size in planned["reserved_bytes"].items():
        heir.reservations.filter(device__uuid=uuid, until__isnull=True).update(bytes=size)
    if not heir.ports.filter(until__isnull=True).exists():
        PortReservation.objects.create(host_id=heir.host_id, port=heir.port, launch=heir, since=now)
