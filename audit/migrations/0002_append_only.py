"""The chain's head row, and triggers that make the trail append-only on SQLite and PostgreSQL."""

from django.db import migrations

from audit import triggers


def add_head(apps, schema_editor):
    apps.get_model("audit", "Head").objects.get_or_create(pk=1)


def install(apps, schema_editor):
    triggers.install(schema_editor, "audit_entry")


def remove(apps, schema_editor):
    triggers.remove(schema_editor, "audit_entry")


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [
        migrations.RunPython(add_head, migrations.RunPython.noop),
        migrations.RunPython(install, remove),
    ]
