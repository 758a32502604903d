"""What should run where, and what did. States move in transitions.py alone; text of hosts is stored as observed."""

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from deployments.planning.states import LaunchState, RunState

# Launches of plans that were not carried out: no host was ever asked to start them.
NEVER_ASKED = models.Q(state=LaunchState.PLANNED) | models.Q(state=LaunchState.STOPPED, launched_at__isnull=True)


def choices(states) -> list[tuple[str, str]]:
    return [(state.value, state.name.replace("_", " ").capitalize()) for state in states]


class Deployment(models.Model):
    """A wish with a name: how vLLM shall serve one model. What exactly, its revisions say."""

    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="deployments")
    name = models.SlugField(_("name"), max_length=80)
    created_at = models.DateTimeField()
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("deployment")
        permissions = [
            ("start_deployment", _("Can start a deployment")),
            ("stop_deployment", _("Can stop a deployment")),
            ("read_log", _("Can read logs")),
            ("see_environment_values", _("Can see the values of environment variables")),
            ("load_code", _("Can use arguments that load code")),
            ("force_cancel", _("Can force a cancel")),
        ]
        constraints = [models.UniqueConstraint(fields=["environment", "name"], name="deployment_name_once")]

    def __str__(self) -> str:
        return self.name


class Revision(models.Model):
    """One version of the wish, never changed. `spec` holds canonical bytes, `digest` their sha256."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    spec = models.BinaryField()
    digest = models.CharField(max_length=64)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="children")
    author = models.CharField(max_length=160)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-number"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="revision_number_once")]

    def __str__(self) -> str:
        return f"{self.deployment} r{self.number}"


class Instance(models.Model):
    """A slot of a deployment: at most one live launch at a time."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="instances")
    slot = models.PositiveIntegerField()
    name = models.CharField(max_length=90)

    class Meta:
        ordering = ["deployment", "slot"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["deployment", "slot"], name="instance_slot_once")]

    def __str__(self) -> str:
        return self.name


class Plan(models.Model):
    """What a press of the button will do, to the byte. `intent` is digested, `preconditions` are checked at each step."""

    class State(models.TextChoices):
        OPEN = "open", _("Waiting for the start")
        TAKEN = "taken", _("Running or run")
        DROPPED = "dropped", _("Dropped")
        EXPIRED = "expired", _("Expired")

    class Kind(models.TextChoices):
        START = "start", _("Start")
        STOP = "stop", _("Stop")
        RESTART = "restart", _("Restart")
        SWEEP = "sweep", _("Sweep orphans")

    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="plans")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="plans")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="plans")
    host = models.ForeignKey("hosts.Host", on_delete=models.PROTECT, related_name="plans")
    kind = models.CharField(max_length=10, choices=Kind)
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    intent = models.BinaryField()
    digest = models.CharField(max_length=64)
    preconditions = models.JSONField()
    display = models.JSONField()  # warnings and memory bars, for people
    author = models.CharField(max_length=160)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.deployment} {self.kind} {self.digest[:12]}"


class Run(models.Model):
    """A plan being carried out. The row is the queue; `lease_until` is on the database's clock."""

    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="runs")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="runs")
    plan = models.OneToOneField(Plan, on_delete=models.PROTECT, related_name="run")
    state = models.CharField(max_length=20, choices=choices(RunState), default=RunState.QUEUED.value)
    requested_by = models.CharField(max_length=160)
    requested_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    attempt = models.PositiveIntegerField(default=0)
    lease_owner = models.CharField(max_length=64, blank=True)
    lease_until = models.DateTimeField(null=True)
    cancel_asked_at = models.DateTimeField(null=True)
    force_asked_at = models.DateTimeField(null=True)  # after a cancel, by a right of its own: wait for nothing any more
    problem = models.JSONField(null=True)

    class Meta:
        ordering = ["-requested_at"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"],
                condition=models.Q(state__in=[RunState.QUEUED.value, RunState.RUNNING.value]),
                name="one_active_run_per_deployment",
            )
        ]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.deployment}"


class RunStep(models.Model):
    """One step with a remote effect: recorded before it begins and when it ended."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveIntegerField()
    name = models.CharField(max_length=40)
    subject = models.CharField(max_length=120)
    state = models.CharField(
        max_length=10, choices=[(s, s) for s in ("waiting", "running", "done", "failed", "skipped")], default="waiting"
    )
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["position"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["run", "position"], name="run_step_position_once")]

    def __str__(self) -> str:
        return f"{self.name} {self.subject}"


class Launch(models.Model):
    """One start of one instance. Its id marks the processes on the host; it never comes back once it ended."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="launches")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="launches")
    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="launches")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="launches")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="launches")
    host = models.ForeignKey("hosts.Host", on_delete=models.PROTECT, related_name="launches")
    # The launch whose slot, devices and port this one takes over when that has ended: see ledger.hand_over.
    replaces = models.ForeignKey("self", on_delete=models.RESTRICT, null=True, related_name="heirs")
    state = models.CharField(max_length=20, choices=choices(LaunchState), default=LaunchState.PLANNED.value)
    address = models.CharField(max_length=64)
    port = models.PositiveIntegerField()
    served_name = models.CharField(max_length=200)
    argv = models.JSONField()
    # Launches of one key share vLLM's compile cache (planning/start_order.py).
    compile_key = models.CharField(max_length=64, blank=True, db_default="")
    # Bytes that its fullest device held beside weights and KV cache when it was ready; corrects later plans.
    measured_overhead = models.BigIntegerField(null=True)
    attempt = models.PositiveIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    pid = models.BigIntegerField(null=True)
    start_time = models.BigIntegerField(null=True)
    sid = models.BigIntegerField(null=True)
    log_path = models.TextField(blank=True)
    phase = models.CharField(max_length=20, blank=True)
    progress = models.JSONField(default=dict)  # what the log told so far, see planning/phases.py
    verdict = models.JSONField(null=True)  # the last verification: code, sentence, probe figures, when
    measured = models.JSONField(default=dict)  # bytes per device seen after the start
    exit_code = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    cause = models.JSONField(null=True)  # why it failed: code, sentence, next step, evidence line and its number
    created_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(null=True)
    processes = models.JSONField(default=list)  # as last observed
    # Of an orphan: what looked like it and was not proven to be of it, with why. As last observed.
    left_alone = models.JSONField(default=list, db_default=[])

    class Meta:
        ordering = ["-created_at"]
        default_permissions = ()
        indexes = [models.Index(fields=["compile_key"], name="launch_by_compile_key")]

    def __str__(self) -> str:
        return f"{self.instance.name} {str(self.pk)[:8]}"


class Rank(models.Model):
    """One worker of an instance: where it lies in the tensor and pipeline parallel grid, and on which device."""

    launch = models.ForeignKey(Launch, on_delete=models.CASCADE, related_name="ranks")
    host = models.ForeignKey("hosts.Host", on_delete=models.PROTECT, related_name="+")
    device = models.ForeignKey("hosts.Device", on_delete=models.PROTECT, related_name="ranks")
    pipeline_rank = models.PositiveIntegerField(default=0)
    tensor_rank = models.PositiveIntegerField(default=0)
    role = models.CharField(max_length=10, choices=[("head", "head"), ("follower", "follower")], default="head")
    address = models.CharField(max_length=64)

    class Meta:
        ordering = ["pipeline_rank", "tensor_rank"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["launch", "pipeline_rank", "tensor_rank"], name="rank_once_per_launch")
        ]

    def __str__(self) -> str:
        return f"PP{self.pipeline_rank} TP{self.tensor_rank}"


class Reservation(models.Model):
    """Bytes of a device held for a launch, from the plan until the launch ended. `until` empty: still held."""

    device = models.ForeignKey("hosts.Device", on_delete=models.PROTECT, related_name="reservations")
    launch = models.ForeignKey(Launch, on_delete=models.CASCADE, related_name="reservations")
    bytes = models.BigIntegerField()
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["device", "launch"], name="device_reserved_once_per_launch"),
            models.CheckConstraint(condition=models.Q(bytes__gte=0), name="reserved_bytes_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.bytes} on {self.device_id}"


class PortReservation(models.Model):
    """A port of a host held for a launch: the database lets one launch hold it at a time."""

    host = models.ForeignKey("hosts.Host", on_delete=models.PROTECT, related_name="ports")
    port = models.PositiveIntegerField()
    launch = models.ForeignKey(Launch, on_delete=models.CASCADE, related_name="ports")
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["host", "port"], condition=models.Q(until__isnull=True), name="port_held_once_per_host"
            )
        ]

    def __str__(self) -> str:
        return f"{self.host_id}:{self.port}"


class Event(models.Model):
    """One move of a run or a launch, append-only."""

    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="events")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="events")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, related_name="events")
    launch = models.ForeignKey(Launch, on_delete=models.CASCADE, null=True, related_name="events")
    at = models.DateTimeField()
    actor = models.CharField(max_length=160)
    before = models.CharField(max_length=20)
    after = models.CharField(max_length=20)
    reason = models.JSONField(default=dict)  # code, sentence

    class Meta:
        ordering = ["-at", "-pk"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"


class LogStream(models.Model):
    """The log of one launch as far as it was read: `next_offset` bytes of the file, `lines` whole lines."""

    launch = models.OneToOneField(Launch, on_delete=models.CASCADE, related_name="log")
    next_offset = models.BigIntegerField(default=0)
    lines = models.BigIntegerField(default=0)
    stored_bytes = models.BigIntegerField(default=0)
    capped = models.BooleanField(default=False)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.launch_id} {self.lines}"


class LogChunk(models.Model):
    """Many lines of a log, compressed, append-only. Lines `first_line` … `first_line + line_count - 1` (from 1)."""

    stream = models.ForeignKey(LogStream, on_delete=models.CASCADE, related_name="chunks")
    first_line = models.BigIntegerField()
    line_count = models.PositiveIntegerField()
    text = models.BinaryField()  # zlib of UTF-8, lines joined by \n
    read_at = models.DateTimeField()

    class Meta:
        ordering = ["first_line"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["stream", "first_line"], name="log_chunk_line_once")]

    def __str__(self) -> str:
        return f"{self.stream_id} from {self.first_line}"
