"""The trail: written with the change, chained, and unchangeable."""

import pytest
from django.db import DatabaseError, connection, transaction

from accounts.actors import Actor
from accounts.models import Environment
from audit.models import Entry
from audit.record import OutsideTransaction, content, record
from audit.verify import find_faults

pytestmark = pytest.mark.django_db(transaction=True)
ANN = Actor(label="ann", user_id=7, address="127.0.0.1")


def write(count: int = 1) -> list[Entry]:
    environment = Environment.objects.create(
        name=f"e{Environment.objects.count()}", slug=f"e{Environment.objects.count()}"
    )
    with transaction.atomic():
        return [record(actor=ANN, action="test.act", subject=environment, after={"n": n}) for n in range(count)]


@pytest.fixture
def no_triggers():
    """Somebody with the database's password took the triggers away."""
    from audit import triggers

    with connection.schema_editor() as editor:
        triggers.remove(editor, "audit_entry")


class TestRecord:
    def test_refuses_to_write_outside_the_transaction_of_the_change(self):
        environment = Environment.objects.create(name="x", slug="x")
        with pytest.raises(OutsideTransaction):
            record(actor=ANN, action="test.act", subject=environment)

    def test_is_gone_when_the_change_is_rolled_back(self):
        environment = Environment.objects.create(name="x", slug="x")
        with pytest.raises(RuntimeError), transaction.atomic():
            record(actor=ANN, action="test.act", subject=environment)
            raise RuntimeError
        assert not Entry.objects.exists()
        assert list(find_faults()) == []

    def test_keeps_who_what_and_both_sides_of_the_change(self):
        (entry,) = write()
        body = content(entry)
        assert (body["actor"], body["actor_user"], body["address"]) == ("ann", 7, "127.0.0.1")
        assert body["after"] == {"n": 0}
        assert body["object_type"] == "accounts.environment"


class TestTriggers:
    def test_refuse_an_update(self):
        write()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            Entry.objects.update(actor="somebody else")

    def test_refuse_a_delete(self):
        write()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            Entry.objects.all()._raw_delete(Entry.objects.db)

    def test_refuse_raw_sql(self):
        write()
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE audit_entry SET actor = 'x'")


class TestVerify:
    def test_finds_nothing_in_a_whole_trail(self):
        write(5)
        assert list(find_faults()) == []

    @pytest.mark.parametrize(
        ("what", "codes"),
        [
            ({"body": b'{"form":1}'}, {"BODY_CHANGED"}),
            ({"actor": "somebody else"}, {"COLUMN_CHANGED"}),
            ({"hash": "f" * 64}, {"BODY_CHANGED", "LINK_BROKEN"}),
            ({"environment_id": 999}, {"COLUMN_CHANGED"}),
        ],
        ids=["body", "column", "hash", "environment"],
    )
    def test_names_what_was_changed_with_the_triggers_away(self, no_triggers, what, codes):
        entries = write(5)
        Entry.objects.filter(pk=entries[2].pk).update(**what)
        assert {fault.code for fault in find_faults()} == codes

    def test_names_a_missing_entry_and_a_cut_end(self, no_triggers):
        entries = write(5)
        Entry.objects.filter(pk=entries[2].pk).delete()
        assert {"GAP", "LINK_BROKEN"} <= {fault.code for fault in find_faults()}
        Entry.objects.filter(pk=entries[4].pk).delete()
        assert "HEAD_DIFFERS" in {fault.code for fault in find_faults()}
