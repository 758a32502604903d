"""Models that look whole and cannot be loaded: told with the facts, in the plan, and at the launch at the latest."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from django.urls import reverse
from django.utils import timezone

from deployments.models import Plan
from deployments.services.runs import request_run
from hosts.agent.model_files import find_unreadable
from hosts.agent.models import find_models
from tests.bad_input.conftest import is_clear
from tests.fleet.conftest import ANN
from tests.fleet.test_start_and_stop import plan_start

NOBODY = 65534


@pytest.fixture
def model():
    """A directory that everybody may reach (pytest's own are closed to others)."""
    top = Path(tempfile.mkdtemp(prefix="models-"))
    top.chmod(0o755)
    directory = top / "m"
    directory.mkdir(mode=0o755)
    for name in ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (directory / name).write_text("{}")
        (directory / name).chmod(0o644)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(top)


@pytest.fixture
def as_somebody_else():
    """Rights mean nothing to root: for these tests it gives them up."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    if before == 0:
        os.seteuid(0)


def close(path: Path) -> None:
    path.chmod(0)


def cut(path: Path) -> None:
    path.unlink()
    path.symlink_to("../blobs/gone")


class TestFilesOfAModel:
    def test_that_all_open_are_no_problem(self, model, as_somebody_else):
        (entry,) = find_models([str(model.parent)])
        assert (entry["unreadable"], entry["config_error"], entry["weight_files"]) == (None, None, 2)

    @pytest.mark.parametrize("spoil", [close, cut])
    @pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
    def test_that_do_not_open_are_named(self, name, spoil, model, request):
        spoil(model / name)
        request.getfixturevalue("as_somebody_else")
        (entry,) = find_models([str(model.parent)])
        assert name in entry["unreadable"]
        assert name in find_unreadable(str(model))

    def test_in_a_closed_directory_are_told_too(self, model, request):
        close(model)
        request.getfixturevalue("as_somebody_else")
        (entry,) = find_models([str(model.parent)])
        assert (entry["path"], entry["config"]) == (str(model), None)
        assert "Permission denied" in entry["unreadable"]
        assert "Permission denied" in find_unreadable(str(model))

    def test_leave_other_files_alone(self, model, request):
        close(Path(shutil.copy(model / "config.json", model / "notes.lock")))
        request.getfixturevalue("as_somebody_else")
        assert find_unreadable(str(model)) is None

    def test_may_be_a_pipe_without_holding_anything_up(self, model):
        os.mkfifo(model / "tokenizer.json")
        assert find_unreadable(str(model)) is None


@pytest.mark.django_db(transaction=True)
class TestUnreadableModel:
    @pytest.fixture
    def weights(self, fleet) -> Path:
        return next(Path(fleet["gpu-a"].model_path("Qwen3-0.6B")).glob("*.safetensors"))

    def test_is_refused_in_the_plan(self, weights, enrol, nothing_half_started, signed_in):
        cut(weights)
        host = enrol("gpu-a")
        refused = plan_start(host)
        is_clear(vars(refused.reasons[0]), "MODEL_UNREADABLE")
        assert weights.name in refused.reasons[0].message
        nothing_half_started("gpu-a")

    def test_is_refused_at_the_launch_when_it_became_so_after_the_plan(self, weights, enrol, nothing_half_started):
        plan = plan_start(enrol("gpu-a"))
        assert isinstance(plan, Plan)
        cut(weights)
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert run.state == "precondition_failed"
        is_clear(run.problem, "MODEL_UNREADABLE")
        nothing_half_started("gpu-a")

    @pytest.mark.parametrize(
        "content",
        [b"{", b"[1]", b"\xff\xfe", b'{"a": ' + b"[" * 20_000, b"{}", b'{"num_attention_heads": "many"}', b"null"],
        ids=["cut off", "a list", "not UTF-8", "nested", "empty object", "text for a number", "null"],
    )
    def test_configuration_never_raises(self, content, fleet, enrol, signed_in):
        (Path(fleet["gpu-a"].model_path("Qwen3-0.6B")) / "config.json").write_bytes(content)
        host = enrol("gpu-a")
        assert host.state == "enrolled", host.problem
        page = signed_in.get(reverse("hosts:detail", args=[host.pk]))
        assert page.status_code == 200
        made = plan_start(host)
        for reason in () if isinstance(made, Plan) else made.reasons:
            is_clear(vars(reason), str(reason.code))

    def test_path_that_vanishes_is_refused_at_the_launch(self, fleet, enrol, nothing_half_started):
        plan = plan_start(enrol("gpu-a"))
        shutil.rmtree(fleet["gpu-a"].model_path("Qwen3-0.6B"))
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        is_clear(run.problem, "MODEL_MISSING")
        nothing_half_started("gpu-a")

    def test_program_that_vanishes_is_refused_at_the_launch(self, fleet, enrol, nothing_half_started):
        plan = plan_start(enrol("gpu-a"))
        Path(fleet["gpu-a"].vllm).unlink()
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert run.state == "precondition_failed"
        is_clear(run.problem, run.problem["code"])
        nothing_half_started("gpu-a")
