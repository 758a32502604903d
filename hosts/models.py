"""Which machines exist, and what was observed on them."""

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _


class Credential(models.Model):
    """A way to sign in to hosts. `sealed` opens only with the private key that worker and watcher hold."""

    class Kind(models.TextChoices):
        KEY = "key", _("Private key")
        PASSWORD = "password", _("Password")
        SECRET = "secret", _("Secret for an instance")  # a value for its environment; never used to sign in

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="credentials")
    name = models.CharField(_("name"), max_length=80)
    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    sealed = models.BinaryField(editable=False)
    version = models.PositiveIntegerField(default=1)
    # What may be shown of it: the public key's fingerprint for a key, nothing for a password.
    fingerprint = models.CharField(max_length=80, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        default_permissions = ("view", "add", "delete")
        verbose_name = _("credential")
        constraints = [models.UniqueConstraint(fields=["environment", "name"], name="credential_name_once")]

    def __str__(self) -> str:
        return self.name


class Host(models.Model):
    """A machine. Its identity (machine id, host key) is pinned at enrolment; a second enrolment names the first."""

    class State(models.TextChoices):
        PROPOSED = "proposed", _("Asking for the host key")
        KEY_SHOWN = "key_shown", _("Fingerprint to confirm")
        CONFIRMED = "confirmed", _("Signing in")
        ENROLLED = "enrolled", _("Enrolled")
        REFUSED = "refused", _("Enrolment refused")

        @property
        def tone(self) -> str:
            return {"enrolled": "green", "refused": "red", "key_shown": "yellow"}.get(self.value, "blue")

    environment = models.ForeignKey("accounts.Environment", on_delete=models.PROTECT, related_name="hosts")
    name = models.CharField(_("name"), max_length=80)
    address = models.CharField(_("address"), max_length=255)
    port = models.PositiveIntegerField(_("SSH port"), default=22)
    user = models.CharField(_("user"), max_length=64)
    credential = models.ForeignKey(Credential, on_delete=models.PROTECT, related_name="hosts")
    model_roots = models.JSONField(_("model directories"), default=list)
    vllm_roots = models.JSONField(_("vLLM directories"), default=list)
    state_root = models.CharField(_("state directory"), max_length=255, blank=True)
    log_root = models.CharField(_("log directory"), max_length=255, blank=True)
    interpreter = models.CharField(_("Python on the host"), max_length=255, blank=True)

    state = models.CharField(max_length=12, choices=State, default=State.PROPOSED)
    host_key_kind = models.CharField(max_length=40, blank=True)
    host_key = models.TextField(blank=True)
    host_key_fingerprint = models.CharField(max_length=80, blank=True)
    machine_id = models.CharField(max_length=64, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)

    problem = models.JSONField(null=True)  # code, message, next_step, numbers of the last failure; None when fine
    asked_at = models.DateTimeField(null=True)  # a job is due: enrolment step or fresh facts
    claimed_until = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        verbose_name = _("host")
        permissions = [
            ("refresh_host", _("Can read fresh facts from a host")),
            ("sweep_host", _("Can sweep orphaned processes of a host")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["environment", "name"], name="host_name_once"),
            models.UniqueConstraint(
                fields=["machine_id"], name="machine_enrolled_once", condition=~models.Q(machine_id="")
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def enrolled(self) -> bool:
        return self.state == self.State.ENROLLED

    @property
    def state_tone(self) -> str:
        return self.State(self.state).tone

    @property
    def login(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"


class HostFacts(models.Model):
    """What a host said of itself at one moment; never changed afterwards."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="facts")
    taken_at = models.DateTimeField(db_index=True)
    body = models.JSONField()

    class Meta:
        ordering = ["-taken_at"]
        get_latest_by = "taken_at"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.host} {self.taken_at:%Y-%m-%d %H:%M}"


class Device(models.Model):
    """One GPU, one MIG slice, or the CPU of a host without either."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="devices")
    uuid = models.CharField(max_length=80)
    kind = models.CharField(max_length=4, choices=[("gpu", "GPU"), ("mig", "MIG"), ("cpu", "CPU")])
    index = models.PositiveIntegerField(null=True)
    name = models.CharField(max_length=120)
    memory_total = models.BigIntegerField(null=True)
    present = models.BooleanField(default=True)
    # The last reading and when it was made; None where the machine did not say.
    use = models.JSONField(null=True)
    use_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["index", "uuid"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["host", "uuid"], name="device_once_per_host")]

    def __str__(self) -> str:
        return f"{self.name} {self.uuid}"


class Sample(models.Model):
    """One reading of a whole host: devices, load, memory, packed in one row."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField()
    body = models.JSONField()

    class Meta:
        ordering = ["-at"]
        default_permissions = ()
        indexes = [models.Index(fields=["host", "-at"])]

    def __str__(self) -> str:
        return f"{self.host_id} {self.at:%H:%M:%S}"


class HostWatch(models.Model):
    """Which watcher process holds the host's watch channel, until when, and whether it hears the host."""

    host = models.OneToOneField(Host, on_delete=models.CASCADE, related_name="watch")
    owner = models.CharField(max_length=64, blank=True)
    until = models.DateTimeField(null=True)
    reachable = models.BooleanField(null=True)
    since = models.DateTimeField(null=True)
    problem = models.JSONField(null=True)
    # Not tried again until a person has done something: the sign-in or an identity was refused (hosts/ssh/retry.py).
    waits_for_person = models.BooleanField(default=False, db_default=False)
    # Live launches of other controllers there, as last seen: controller, instance, state, port. Empty: none, or not seen.
    others = models.JSONField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.host_id} {self.owner}"


class Installation(models.Model):
    """One row for the installation of fleetadmin itself: the controller id that marks its processes on the hosts."""

    controller_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.controller_id)
