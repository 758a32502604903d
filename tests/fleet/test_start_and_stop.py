"""Plan, start, verify, watch and stop on a simulated host, through the application's own services."""

import json
import threading
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from audit.models import Entry
from deployments import ledger
from deployments.log_store import read_lines
from deployments.models import Launch, Plan, PortReservation, Reservation, Run
from deployments.planning.placement import DeviceRoom
from deployments.planning.refusals import Refused
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from deployments.services.observing import WATCHER, still_as_seen
from deployments.services.plans import make_start_plan, make_stop_plan, make_sweep_plan
from deployments.services.revisions import create_deployment
from deployments.services.runs import RunRefused, request_run
from deployments.watching import HostWatching, Watcher
from hosts.connections import connections
from hosts.models import Host, HostWatch
from tests import people
from tests.fleet.conftest import ANN, eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(enrol) -> Host:
    return enrol("gpu-a")


def make_spec(host: Host, **changes) -> DeploymentSpec:
    model = next(m["path"] for m in host.facts.latest().body["models"] if "Qwen3-0.6B" in m["path"])
    values = {
        "name": "qwen",
        "host": host.name,
        "model": model,
        "served_model_name": "qwen3",
        "max_model_len": 4096,
        "max_num_seqs": 32,
    }
    spec = parse_spec({**values, **changes})
    assert isinstance(spec, DeploymentSpec), spec
    return spec


def plan_start(host: Host, **changes) -> Plan | Refused:
    revision = create_deployment(
        environment=host.environment, spec=make_spec(host, **changes), by=ANN, now=timezone.now()
    )
    return make_start_plan(
        deployment=revision.deployment, revision=revision, allow_code_loading=False, by=ANN, now=timezone.now()
    )


def start(host: Host, **changes) -> Run:
    plan = plan_start(host, **changes)
    assert isinstance(plan, Plan), plan
    run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
    run.refresh_from_db()
    return run


def codes(refused: Refused) -> list[str]:
    assert isinstance(refused, Refused), refused
    return [str(reason.code) for reason in refused.reasons]


class TestPlan:
    def test_holds_its_port_and_bytes_before_anything_starts(self, host):
        plan = plan_start(host)
        launch = plan.launches.get()
        assert launch.state == "planned"
        assert PortReservation.objects.get(launch=launch).until is None
        assert Reservation.objects.get(launch=launch).bytes > 0
        assert launch.ranks.get().device.uuid.startswith("GPU-")

    def test_shows_every_reason_at_once(self, host):
        found = codes(
            plan_start(
                host, model="/nowhere/model", max_model_len=None, extra_args={"--port": "1", "--frobnicate": "1"}
            )
        )
        assert {"ARGUMENT_OURS"} <= set(found)
        assert len(found) >= 3

    def test_refuses_code_loading_without_the_permission(self, host):
        assert "ARGUMENT_LOADS_CODE" in codes(plan_start(host, extra_args={"--trust-remote-code": True}))

    def test_refuses_more_memory_than_there_is(self, host):
        assert "MEMORY_TOO_SMALL" in codes(plan_start(host, instances=40))

    def test_replaces_an_open_plan_and_frees_what_that_held(self, host):
        first = plan_start(host)
        make_start_plan(
            deployment=first.deployment, revision=first.revision, allow_code_loading=False, by=ANN, now=timezone.now()
        )
        first.refresh_from_db()
        assert first.state == Plan.State.DROPPED
        assert PortReservation.objects.filter(until__isnull=True).count() == 1


class TestRun:
    def test_starts_verifies_and_keeps_the_log(self, host):
        run = start(host)
        launch = Launch.objects.get(plan=run.plan)
        assert (run.state, launch.state) == ("succeeded", "ready"), (run.problem, launch.cause, launch.verdict)
        assert launch.verdict["probe"]["answer"]["tokens"] >= 1
        assert launch.progress["kv_tokens"] > 0
        lines = [line for _, line in read_lines(launch.log, first=1, limit=5000)]
        assert any("Application startup complete" in line for line in lines)
        assert [step.name for step in run.steps.all()] == ["launch", "follow_start", "verify"]
        assert all(step.state == "done" for step in run.steps.all())

    def test_refuses_another_digest_than_the_plan_has(self, host):
        plan = plan_start(host)
        with pytest.raises(RunRefused) as refusal:
            request_run(plan=plan, digest="0" * 64, by=ANN, now=timezone.now())
        assert refusal.value.problem["code"] == "PLAN_DIFFERS"

    def test_takes_a_plan_once(self, host):
        run = start(host)
        with pytest.raises(RunRefused) as refusal:
            request_run(plan=run.plan, digest=run.plan.digest, by=ANN, now=timezone.now())
        assert refusal.value.problem["code"] == "PLAN_NOT_OPEN"

    def test_ends_as_precondition_failed_when_a_foreigner_took_the_port(self, host, fleet):
        import socket

        plan = plan_start(host)
        launch = plan.launches.get()
        with socket.create_server((host.address, launch.port)):
            run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        launch.refresh_from_db()
        assert run.state == "precondition_failed"
        assert run.problem["code"] == "PORT_TAKEN"
        assert launch.state in ("failed", "stopped")
        assert not ledger.live_launches(plan.deployment).exists()
        assert not PortReservation.objects.filter(launch=launch, until__isnull=True).exists()


class TestStop:
    def test_leaves_nothing_in_the_ledger_or_on_the_host(self, host, fleet):
        run = start(host)
        plan = make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now())
        stopped = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        stopped.refresh_from_db()
        launch = Launch.objects.get(plan=run.plan)
        assert (stopped.state, launch.state) == ("succeeded", "stopped"), stopped.problem
        assert not Reservation.objects.filter(until__isnull=True).exists()
        assert not PortReservation.objects.filter(until__isnull=True).exists()
        titles = [process.title for process in fleet["gpu-a"].machine]
        assert not [title for title in titles if "vllm" in title.lower()]

    def test_says_so_when_there_is_nothing_to_stop(self, host):
        run = start(host)
        plan = make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now())
        request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        assert codes(make_stop_plan(deployment=run.deployment, by=ANN, now=timezone.now())) == ["NOTHING_TO_STOP"]


@pytest.fixture
def watching(host):
    """A watcher's thread on this host."""
    import threading

    watcher = Watcher()
    thread = threading.Thread(target=watcher.watch_host, args=(host.pk,), daemon=True)

    def begin() -> None:
        thread.start()

    yield begin
    watcher.stop.set()
    if thread.ident:
        thread.join(40)
        assert not thread.is_alive()


class TestWatcher:
    def test_finds_an_orphan_and_the_sweep_removes_it(self, host, fleet, watching, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        run = start(host)
        launch = Launch.objects.get(plan=run.plan)
        fleet["gpu-a"].kill("vllm serve")
        watching()
        eventually(lambda: Launch.objects.filter(pk=launch.pk, state="orphaned").exists())
        launch.refresh_from_db()
        assert any("EngineCore" in process["title"] for process in launch.processes)
        assert Reservation.objects.get(launch=launch).until is None
        plan = make_sweep_plan(deployment=run.deployment, by=ANN, now=timezone.now())
        named = json.loads(bytes(plan.intent))["stops"][0]["processes"]
        assert {(process["pid"], process["proof"]) for process in named} == {
            (process["pid"], "marker") for process in launch.processes
        }
        swept = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        swept.refresh_from_db()
        launch.refresh_from_db()
        assert (swept.state, launch.state) == ("succeeded", "stopped"), swept.problem
        assert not Reservation.objects.filter(until__isnull=True).exists()

    @pytest.mark.parametrize("end", ["its processes end", "the host is started anew"])
    def test_calls_an_orphan_failed_that_ends_by_itself(self, host, fleet, watching, settings, end):
        settings.WATCH_INTERVAL_SECONDS = 1
        launch = Launch.objects.get(plan=start(host).plan)
        Launch.objects.update(launched_at=timezone.now() - timedelta(minutes=1))
        fleet["gpu-a"].kill("vllm serve")
        watching()
        eventually(lambda: Launch.objects.filter(pk=launch.pk, state="orphaned").exists())
        if end == "its processes end":
            fleet["gpu-a"].kill("VLLM::EngineCore")
            fleet["gpu-a"].kill("resource_tracker")
        else:
            fleet["gpu-a"].reboot()
        eventually(lambda: Launch.objects.filter(pk=launch.pk, state="failed").exists())
        launch.refresh_from_db()
        assert launch.cause["code"] == ("KILLED" if end == "its processes end" else "HOST_REBOOTED"), launch.cause
        assert Entry.objects.filter(action="launch.failed").get().actor == WATCHER.label
        eventually(lambda: not Reservation.objects.filter(until__isnull=True).exists())

    def test_calls_an_instance_failed_whose_engine_died_with_the_cause(self, host, fleet, watching, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        run = start(host)
        launch = Launch.objects.get(plan=run.plan)
        watching()
        fleet["gpu-a"].kill("VLLM::EngineCore")
        eventually(lambda: Launch.objects.filter(pk=launch.pk, state="failed").exists())
        launch.refresh_from_db()
        assert launch.cause["code"]
        assert launch.cause["sentence"].endswith(".")

    def test_writes_samples_and_device_readings(self, host, watching, settings):
        settings.WATCH_INTERVAL_SECONDS = 1
        watching()
        eventually(host.samples.exists)
        device = eventually(lambda: host.devices.filter(use__isnull=False).first())
        assert device.use["total"] > 0
        assert device.use_at is not None


class TestStoredBytes:
    def test_runs_nothing_when_the_stored_plan_is_not_the_one_that_was_confirmed(self, host, fleet):
        plan = plan_start(host)
        changed = bytes(plan.intent).replace(b'"--max-model-len","4096"', b'"--max-model-len","8192"')
        assert changed != bytes(plan.intent)
        Plan.objects.filter(pk=plan.pk).update(intent=changed)
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert (run.state, run.problem["code"]) == ("precondition_failed", "PLAN_BYTES_CHANGED")
        assert not [process for process in fleet["gpu-a"].machine if "vllm" in process.title.lower()]


class TestAge:
    """A launch is as old as the last look at it, not as the last word of its host."""

    def test_grows_until_the_first_look_after_a_new_connection(self, host, settings):
        launch = Launch.objects.get(plan=start(host).plan)
        before = timezone.now() - timedelta(minutes=5)
        Launch.objects.update(observed_at=before)
        seen = HostWatching(host.pk, stop=threading.Event())
        seen.take({"sample": {"devices": [], "memory": {"total": 2, "available": 1}}}, session=None)
        launch.refresh_from_db()
        assert launch.observed_at == before

    def test_ends_with_the_host_that_does_not_know_it(self, host):
        launch = Launch.objects.get(plan=start(host).plan)
        before = timezone.now() - timedelta(minutes=5)
        Launch.objects.update(observed_at=before)
        still_as_seen(launch_ids=set(), sample={"devices": []}, now=timezone.now())
        launch.refresh_from_db()
        assert launch.observed_at == before
        still_as_seen(launch_ids={str(launch.pk)}, sample={"devices": []}, now=timezone.now())
        launch.refresh_from_db()
        assert launch.observed_at > before


class TestAnotherController:
    """Two installations reach one host with one account."""

    def test_is_shown_on_the_host_page_and_keeps_what_it_was_promised(self, host, client, settings, monkeypatch):
        first = start(host)
        launch = Launch.objects.get(plan=first.plan)
        watching = HostWatching(host.pk, stop=threading.Event())
        HostWatch.objects.get_or_create(host=host)
        monkeypatch.setattr(watching, "controller", "another-installation")
        with connections.session(host) as session:
            views = session.request("observe", {}, timeout=10)["launches"]
        watching.keep_others(views)
        client.force_login(people.administrator())
        page = client.get(reverse("hosts:detail", args=[host.pk])).content.decode()
        assert "Of another fleetadmin" in page
        assert launch.instance.name in page

    def test_cannot_be_promised_what_is_promised_already(self, host, monkeypatch):
        """As if this installation knew nothing of its first launch: its ledger is empty, the host's is not."""
        first = start(host, kv_cache_memory_bytes="16GiB", devices=[0])
        Launch.objects.filter(plan=first.plan).delete()
        monkeypatch.setattr("deployments.planning.placement.measure_room", as_if_empty)
        plan = plan_start(host, name="second", kv_cache_memory_bytes="16GiB", devices=[0], port=8500)
        assert isinstance(plan, Plan), plan
        monkeypatch.setattr("deployments.execution.engine.find_broken", lambda *_, **__: None)
        run = request_run(plan=plan, digest=plan.digest, by=ANN, now=timezone.now())
        run.refresh_from_db()
        assert (run.state, run.problem["code"]) == ("precondition_failed", "DEVICE_FULL")


def as_if_empty(*, device, taken):
    return DeviceRoom(device=device, total=device.memory_total, ours=0, foreign=0, reserve=0)
