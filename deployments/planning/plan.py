"""What is about to happen, as a value: a digested intent, and preconditions checked before each step.

The intent holds everything that decides what runs (identities, argv, environment, ports, bytes, order) and
only text, whole numbers, true/false and null. Its bytes are written once, by `audit.canonical`, and stored;
the digest is of those bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from audit.canonical import canonical, digest
from deployments.planning.start_order import waves

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping

PLAN_FORM = 1
SegmentKind = Literal["ours", "weights", "kv_cache", "overhead", "foreign", "reserve", "free"]
PreconditionCode = Literal[
    "machine_id",
    "host_key",
    "port_free",
    "free_bytes",
    "vllm_version",
    "model_present",
    "slot_free",
    "facts_age_s",
    "launch_known",
]


@dataclass(frozen=True, kw_only=True)
class RevisionRef:
    """The revision of a deployment that a plan realises; `digest` is that of the spec's canonical bytes."""

    id: int | str
    number: int
    digest: str
    deployment_id: int | str
    deployment_name: str


@dataclass(frozen=True, kw_only=True)
class HostRef:
    """The host as it was enrolled.

    Roots are absolute paths an administrator allowed; none means nothing is allowed.
    """

    id: int | str
    name: str
    machine_id: str
    host_key_fingerprint: str
    model_roots: tuple[str, ...] = ()
    vllm_roots: tuple[str, ...] = ()
    state_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunningInstance:
    """A launch of the deployment that still lives, from the app's own records.

    `reserved` is bytes per device.
    """

    launch_id: str
    instance: str
    slot: int
    slot_key: str
    devices: tuple[str, ...]
    port: int
    address: str = "127.0.0.1"
    reserved: Mapping[str, int] = field(default_factory=dict)
    revision_number: int | None = None
    # What was seen of an orphan last: pid, start_time, title, role and proof of each process.
    processes: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the ledgers of this host say is spoken for.

    `ports`: held by us or seen in use. `reserved`: bytes per device uuid over all our live launches and
    pending plans. `instances`: the live launches of the deployment that is being planned. `compiled`: compile keys
    of launches that have served on this host. `overheads`: by compile key, the most bytes that a launch held beside
    weights and KV cache when it was ready.
    """

    ports: frozenset[int] = frozenset()
    reserved: Mapping[str, int] = field(default_factory=dict)
    instances: tuple[RunningInstance, ...] = ()
    compiled: frozenset[str] = frozenset()
    overheads: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Precondition:
    """Something that must be true right before a step.

    `subject` says of what: a host, a port's address, a device, a path. `launch_id` is None where it holds for
    the whole run. Sizes are bytes, ages seconds; "at least" for free_bytes, "at most" for ages.
    """

    code: PreconditionCode
    subject: str
    wanted: int | str
    launch_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something the reader of a plan should know.

    `level` "warning" is shown in amber, "info" as a plain line.
    """

    code: str
    message: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True, kw_only=True)
class Segment:
    kind: SegmentKind
    bytes: int
    label: str
    launch_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryBar:
    """How one device is filled after the plan. The segments add up to `total`."""

    device: str
    name: str
    total: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    intent: Mapping[str, Any]
    preconditions: tuple[Precondition, ...]
    notes: tuple[Note, ...]
    memory: tuple[MemoryBar, ...]
    digest: str
    bytes: builtins.bytes

    @property
    def kind(self) -> str:
        """One of "start", "stop", "restart", "sweep"."""
        return str(self.intent["kind"])

    @property
    def launches(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.intent["launches"])

    @property
    def stops(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.intent["stops"])

    @property
    def order(self) -> tuple[tuple[str, ...], ...]:
        """Launch ids in steps, for people: each step waits for something of the one before it."""
        return waves_of(self.intent)


def waves_of(intent: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The launches of an intent in steps. Stops are one step, all side by side; those of a restart belong to its starts."""
    entries = [*intent["launches"], *(intent["stops"] if intent["kind"] != "restart" else ())]
    ids = [str(entry["launch_id"]) for entry in entries]
    return waves(ids=ids, after=intent["order"]["after"])


def seal_plan(
    *,
    intent: Mapping[str, Any],
    preconditions: tuple[Precondition, ...],
    notes: tuple[Note, ...],
    memory: tuple[MemoryBar, ...] = (),
) -> Plan:
    """Write the intent's bytes once and take their digest."""
    content = canonical(intent, form=PLAN_FORM)
    return Plan(
        intent=intent,
        preconditions=preconditions,
        notes=notes,
        memory=memory,
        digest=digest(content),
        bytes=content,
    )
