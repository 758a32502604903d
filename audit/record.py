"""Writing to the trail: in the transaction of the change itself, so that neither is there without the other."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from accounts.actors import Actor
from audit.canonical import canonical, clean_text, digest
from audit.models import Entry, Head

FORM = 1
FIRST_HASH = "0" * 64


@dataclass(frozen=True)
class Subject:
    """What an entry is about, where it is no saved row (a sign-in under a name nobody has)."""

    kind: str
    key: str
    label: str
    environment_id: int | None = None


def subject_of(row) -> Subject:
    return Subject(
        kind=row._meta.label_lower,  # noqa: SLF001
        key=str(row.pk),
        label=str(row),
        environment_id=getattr(row, "environment_id", None),
    )


class OutsideTransaction(Exception):
    """`record` was called outside a transaction: the change and its entry could part."""


def record(
    *,
    actor: Actor,
    action: str,
    subject,
    before: Mapping | None = None,
    after: Mapping | None = None,
    at: datetime | None = None,
) -> Entry:
    """Append one entry about `subject` (a saved row, or a Subject) and return it.

    The caller holds the transaction of the change. Hash: sha256 of the previous hash (64 hex digits) and the body.
    Raises OutsideTransaction without one.
    """
    if not transaction.get_connection().in_atomic_block:
        raise OutsideTransaction(action)
    about = subject if isinstance(subject, Subject) else subject_of(subject)
    head = Head.objects.select_for_update().get(pk=1)
    moment = at or timezone.now()
    row = {
        "sequence": head.sequence + 1,
        "at": moment,
        "actor": actor.label,
        "actor_user": actor.user_id,
        "address": actor.address,
        "request": actor.request_id,
        "action": action,
        "object_type": about.kind,
        "object_id": about.key,
        "object_label": clean_text(about.label)[:200],
        "environment": about.environment_id,
        "before": before,
        "after": after,
    }
    body = canonical(row, form=FORM)
    link = chain_hash(previous=head.hash, body=body)
    entry = Entry.objects.create(
        sequence=row["sequence"],
        at=moment,
        actor=row["actor"],
        action=action,
        object_type=row["object_type"],
        object_id=row["object_id"],
        object_label=row["object_label"],
        environment_id=row["environment"],
        body=body,
        previous_hash=head.hash,
        hash=link,
    )
    Head.objects.filter(pk=1).update(sequence=entry.sequence, hash=entry.hash)
    return entry


def chain_hash(*, previous: str, body: bytes) -> str:
    return digest(previous.encode("ascii") + body)


def content(entry: Entry) -> dict:
    """The entry's body, read back for display."""
    return json.loads(bytes(entry.body))
