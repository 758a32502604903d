"""The append-only record. Rows are written by `audit.record.record` alone; triggers refuse update and delete."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Entry(models.Model):
    """One thing that happened. `body` holds the canonical bytes that `hash` covers and is never serialised again."""

    sequence = models.BigIntegerField(unique=True)
    at = models.DateTimeField(db_index=True)
    actor = models.CharField(max_length=160)
    action = models.CharField(max_length=80, db_index=True)
    object_type = models.CharField(max_length=80)
    object_id = models.CharField(max_length=80)
    object_label = models.CharField(max_length=200)
    # A plain number, not a foreign key: the entry outlives what it is about.
    environment_id = models.BigIntegerField(null=True, db_index=True)
    body = models.BinaryField()
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["-sequence"]
        default_permissions = ("view",)
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        indexes = [models.Index(fields=["object_type", "object_id"])]

    def __str__(self) -> str:
        return f"{self.sequence} {self.action} {self.object_label}"


class Head(models.Model):
    """The chain's last link: one row, locked while an entry is added."""

    sequence = models.BigIntegerField(default=0)
    hash = models.CharField(max_length=64, default="0" * 64)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.sequence)
