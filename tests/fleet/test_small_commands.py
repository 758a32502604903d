"""Commands that set an installation up."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

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


class TestAssets:
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
