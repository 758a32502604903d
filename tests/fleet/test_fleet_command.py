"""`manage.py fleet`: what each verb prints, its exit code, and that it needs its permission."""

import json
from pathlib import Path

import pytest
from django.core.management import call_command

from accounts.models import Role
from audit.models import Entry
from deployments.commands.verbs import VERBS
from deployments.models import Deployment, PortReservation

pytestmark = pytest.mark.django_db(transaction=True)

YAML = """\
name: qwen
host: gpu-a
model: {model}
served_model_name: qwen3
max_model_len: 4096
max_num_seqs: 32
"""
ARGUMENTS = {
    "hosts": [],
    "enrol": ["x", "--address", "127.0.0.1", "--user", "fleet", "--credential", "fleet-key"],
    "refresh": ["gpu-a"],
    "plan": ["FILE"],
    "apply": ["FILE"],
    "status": [],
    "logs": ["qwen-0"],
    "stop": ["qwen"],
    "restart": ["qwen"],
    "sweep": ["qwen"],
    "cancel": ["qwen"],
}


@pytest.fixture
def fleet_command(capsys):
    def run(*arguments: str) -> tuple[int, dict]:
        with pytest.raises(SystemExit) as ended:
            call_command("fleet", *arguments, "--json")
        return ended.value.code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def file(enrol, tmp_path) -> Path:
    host = enrol("gpu-a")
    model = next(m["path"] for m in host.facts.latest().body["models"] if "Qwen3-0.6B" in m["path"])
    path = tmp_path / "qwen.yaml"
    path.write_text(YAML.format(model=model))
    return path


class TestVerbs:
    def test_takes_a_deployment_from_file_to_ready_to_stopped(self, file, fleet_command):
        code, plan = fleet_command("plan", str(file))
        assert code == 0
        assert plan["intent"]["launches"][0]["port"] > 0
        code, run = fleet_command("apply", str(file), "--wait")
        assert (code, run["state"], run["launches"][0]["state"]) == (0, "succeeded", "ready")
        code, status = fleet_command("status", "qwen")
        assert (code, status["instances"][0]["state"]) == (0, "ready")
        code, log = fleet_command("logs", "qwen-0", "--lines", "3")
        assert (code, len(log["lines"])) == (0, 3)
        code, stopped = fleet_command("stop", "qwen", "--wait")
        assert (code, stopped["state"]) == (0, "succeeded")
        assert Entry.objects.filter(action="run.start", actor__startswith="local:").exists()

    def test_plan_holds_nothing_afterwards(self, file, fleet_command):
        code, body = fleet_command("plan", str(file))
        assert (code, len(body["intent"]["launches"])) == (0, 1)
        assert not Deployment.objects.exists()
        assert not PortReservation.objects.exists()

    def test_names_a_file_that_cannot_be_read(self, environment, fleet_command):
        code, body = fleet_command("apply", "nowhere.yaml")
        assert (code, body["refused"][0]["code"]) == (2, "FILE_UNREADABLE")

    def test_names_a_credential_that_is_not_there(self, environment, fleet_command):
        arguments = ["enrol", "x", "--address", "127.0.0.1", "--user", "u", "--credential", "nobody"]
        code, body = fleet_command(*arguments)
        assert (code, body["refused"][0]["code"]) == (2, "CREDENTIAL_UNKNOWN")

    def test_reads_fresh_facts(self, enrol, fleet_command):
        host = enrol("gpu-a")
        code, _body = fleet_command("refresh", "gpu-a")
        assert code == 0
        assert host.facts.count() == 2

    def test_enrols_a_host_whose_fingerprint_is_given(self, credential, fleet, fleet_command):
        described = fleet.describe()[0]
        arguments = [
            "enrol", "gpu-a", "--address", described["address"], "--port", str(described["port"]),
            "--user", described["user"], "--credential", "fleet-key",
        ]  # fmt: skip
        code, shown = fleet_command(*arguments)
        assert (code, shown["host"]["state"]) == (0, "key_shown")
        code, enrolled = fleet_command(*arguments, "--fingerprint", shown["host"]["fingerprint"])
        assert (code, enrolled["host"]["state"]) == (0, "enrolled")
        code, listed = fleet_command("hosts")
        assert [host["name"] for host in listed["hosts"]] == ["gpu-a"]

    def test_refuses_with_reasons_and_code_two(self, file, fleet_command):
        file.write_text(file.read_text() + "extra_args:\n  --trust-remote-code: true\n")
        code, body = fleet_command("apply", str(file))
        assert (code, body["refused"][0]["code"]) == (2, "ARGUMENT_LOADS_CODE")
        assert body["refused"][0]["next_step"]

    def test_says_not_found_with_code_five(self, environment, fleet_command):
        code, body = fleet_command("stop", "nobody")
        assert (code, body["refused"][0]["code"]) == (5, "NOT_FOUND")


class TestPermissions:
    @pytest.mark.parametrize("verb", sorted(VERBS))
    @pytest.mark.parametrize("role", ["viewer", "operator", "administrator", "nobody"])
    def test_each_verb_needs_its_permission(
        self, verb, role, environment, fleet_command, settings, tmp_path, credential
    ):
        settings.LOCAL_ROLE = role
        perm, _function = VERBS[verb]
        app_label, _, codename = perm.partition(".")
        allowed = Role.objects.filter(
            slug=role, permissions__codename=codename, permissions__content_type__app_label=app_label
        ).exists()
        (tmp_path / "x.yaml").write_text("name: x\n")
        arguments = [str(tmp_path / "x.yaml") if item == "FILE" else item for item in ARGUMENTS[verb]]
        code, body = fleet_command(verb, *arguments)
        assert (code == 3) is not allowed
        if not allowed:
            assert body["refused"][0]["code"] == "NOT_PERMITTED"

    def test_code_loading_needs_its_own(self, file, fleet_command, settings):
        settings.LOCAL_ROLE = "operator"
        code, _body = fleet_command("plan", str(file), "--allow-code-loading")
        assert code == 3
