"""Commands that set an installation up."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from deployments.models import Launch
from fleetadmin.management.commands.assets import FILES, missing_files
from fleetadmin.management.commands.demo import describe
from hosts.vault import seal, unseal


class TestVaultKeys:
    def test_prints_a_pair_that_seals_and_opens(self, settings):
        out = StringIO()
        call_command("vault_keys", stdout=out)
        lines = dict(line.split("=", 1) for line in out.getvalue().split())
        settings.VAULT_PUBLIC_KEY = lines["FLEETADMIN_VAULT_PUBLIC_KEY"]
        settings.VAULT_PRIVATE_KEY = lines["FLEETADMIN_VAULT_PRIVATE_KEY"]
        sealed = seal(credential_uuid="1", kind="password", secret={"password": "p"})
        assert unseal(credential_uuid="1", kind="password", sealed=sealed) == {"password": "p"}


class TestDemo:
    @pytest.mark.parametrize("progress", [{}, {"seen": []}, {"percent": 30, "label": "Loading weights", "seen": []}])
    def test_counts_instances_whatever_their_logs_have_told(self, progress):
        launches = [Launch(state="starting", progress=progress), Launch(state="ready", progress={})]
        assert describe(launches) == f"1 ready, 1 {progress.get('label', 'starting').lower()}"


class TestAssets:
    def test_that_are_missing_are_named(self, tmp_path):
        assert missing_files(tmp_path) == list(FILES.values())
        for place in FILES.values():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).touch()
        assert missing_files(tmp_path) == []

    def test_put_the_files_that_pages_name_there(self, settings):
        """`make test` runs "assets" first; every file that a template asks for below vendor/ has to exist."""
        found = {
            part.split("'")[0]
            for path in (Path(settings.BASE_DIR) / "templates").rglob("*.html")
            for part in path.read_text().split("{% static '")[1:]
            if part.startswith("vendor/")
        }
        assert found
        missing = [name for name in found if not (settings.VENDOR_DIR / name).exists()]
        assert missing == []


class TestAudit:
    @pytest.mark.django_db(transaction=True)
    def test_verify_says_whole_with_code_zero(self, capsys):
        call_command("audit", "verify")
        assert "unbroken" in capsys.readouterr().out


@pytest.mark.django_db
class TestSetup:
    def test_makes_roles_and_one_administrator_who_may_everything_shipped(self):
        from django.contrib.auth import get_user_model

        out = StringIO()
        call_command("setup", "--administrator", "ada", stdout=out)
        ada = get_user_model().objects.get(username="ada")
        assert ada.has_perm("hosts.add_host")
        assert ada.check_password(out.getvalue().split("password ")[1].split()[0])

    def test_refuses_to_make_the_same_account_twice(self):
        from django.core.management.base import CommandError

        call_command("setup", "--administrator", "ada", stdout=StringIO())
        with pytest.raises(CommandError, match="already"):
            call_command("setup", "--administrator", "ada", stdout=StringIO())

    def test_keeps_what_administrators_made_of_a_role(self):
        from accounts.models import Role

        call_command("setup", stdout=StringIO())
        Role.objects.get(slug="viewer").permissions.clear()
        call_command("setup", stdout=StringIO())
        assert not Role.objects.get(slug="viewer").permissions.exists()
