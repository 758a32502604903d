"""Checking the chain: every body against its hash, every hash against the next, and the columns against the body."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from audit.models import Entry, Head
from audit.record import FIRST_HASH, chain_hash, content

COLUMNS = ("sequence", "actor", "action", "object_type", "object_id", "object_label")


@dataclass(frozen=True)
class Fault:
    """What is wrong at one place of the chain. Codes: GAP, BODY_CHANGED, LINK_BROKEN, COLUMN_CHANGED, HEAD_DIFFERS."""

    sequence: int
    code: str
    sentence: str


def find_faults() -> Iterator[Fault]:
    """Walk the whole trail in order; nothing is yielded when it is whole."""
    entries = Entry.objects.order_by("sequence").iterator(chunk_size=2000)
    last_sequence, last_hash = 0, FIRST_HASH
    for entry in entries:
        yield from check_entry(entry, after_sequence=last_sequence, after_hash=last_hash)
        last_sequence, last_hash = entry.sequence, entry.hash
    head = Head.objects.get(pk=1)
    if (head.sequence, head.hash) != (last_sequence, last_hash):
        yield Fault(head.sequence, "HEAD_DIFFERS", f"The chain ends at {last_sequence}, its head says {head.sequence}.")


def check_entry(entry: Entry, *, after_sequence: int, after_hash: str) -> Iterable[Fault]:
    if entry.sequence != after_sequence + 1:
        yield Fault(entry.sequence, "GAP", f"Entry {after_sequence + 1} is missing before {entry.sequence}.")
    if entry.previous_hash != after_hash:
        yield Fault(entry.sequence, "LINK_BROKEN", f"Entry {entry.sequence} does not follow the one before it.")
    if chain_hash(previous=entry.previous_hash, body=bytes(entry.body)) != entry.hash:
        yield Fault(entry.sequence, "BODY_CHANGED", f"Entry {entry.sequence} is not what was written.")
        return
    body = content(entry)
    changed = [name for name in COLUMNS if str(getattr(entry, name)) != str(body[name])]
    if changed or entry.environment_id != body["environment"]:
        yield Fault(entry.sequence, "COLUMN_CHANGED", f"Entry {entry.sequence} shows other columns than its body.")
