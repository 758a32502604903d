"""The one row that names this installation: its controller id marks our processes on the hosts."""

from uuid import uuid4

from django.db import migrations


def add_installation(apps, schema_editor):
    apps.get_model("hosts", "Installation").objects.get_or_create(pk=1, defaults={"controller_id": uuid4()})


class Migration(migrations.Migration):
    dependencies = [("hosts", "0001_initial")]
    operations = [migrations.RunPython(add_installation, migrations.RunPython.noop)]
