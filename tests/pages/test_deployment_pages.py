import pytest
from django.urls import reverse
from django.utils import timezone

from accounts.models import Role
from accounts.roles import OPERATE
from accounts.services import assign_role, find_permissions
from deployments.models import Deployment, Launch, Plan, Reservation, Run
from deployments.services.revisions import add_revision, spec_of
from tests import factories
from tests.people import person

pytestmark = pytest.mark.django_db


def text_of(answer, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    return answer.content.decode()


def filled(host, **changes) -> dict:
    return {
        "as": "form",
        "then": "save",
        "host": host.pk,
        "name": "chat",
        "model": "/models/qwen2.5-0.5b-instruct",
        "served_model_name": "qwen",
        "instances": "2",
        "tensor_parallel": "1",
        "pipeline_parallel": "1",
        "vllm": "auto",
        "extra_args": "--enable-prefix-caching\n--max-num-batched-tokens 4096",
        "env": "NCCL_DEBUG=INFO",
    } | changes


class TestNewDeployment:
    def test_offers_what_the_host_has(self, page, host):
        text = text_of(page(reverse("deployments:new"), "operator"))
        assert "/opt/vllm/0.25.1/bin/vllm" in text
        assert host.devices.first().uuid in text

    def test_says_what_is_missing_without_a_host(self, page, environment):
        assert "No host can be chosen." in text_of(page(reverse("deployments:new"), "operator"))

    def test_is_saved_from_the_form(self, send, host):
        device = host.devices.first().uuid
        answer = send(reverse("deployments:new"), filled(host, devices=[device]), "operator")
        deployment = Deployment.objects.get(name="chat")
        assert answer["Location"] == reverse("deployments:detail", args=[deployment.pk])
        spec = spec_of(deployment.revisions.get())
        assert (spec.instances, spec.devices, spec.host) == (2, (device,), "gpu-07")
        assert spec.extra_args == {"--enable-prefix-caching": True, "--max-num-batched-tokens": "4096"}
        assert spec.env == {"NCCL_DEBUG": "INFO"}

    def test_is_saved_from_yaml(self, send, host):
        text = "name: chat\nhost: gpu-07\nmodel: /models/m\nserved_model_name: m\ninstances: 3\n"
        send(reverse("deployments:new"), {"as": "yaml", "host": host.pk, "text": text}, "operator")
        assert spec_of(Deployment.objects.get().revisions.get()).instances == 3

    def test_carries_the_form_over_to_yaml(self, send, host):
        text = text_of(send(reverse("deployments:new"), filled(host, then="yaml"), "operator"))
        assert "served_model_name: qwen" in text
        assert "NCCL_DEBUG: INFO" in text
        assert not Deployment.objects.exists()

    def test_carries_a_half_filled_form_over_too(self, send, host):
        text = text_of(
            send(reverse("deployments:new"), filled(host, then="yaml", name="", model="nowhere"), "operator")
        )
        assert "model: nowhere" in text

    def test_carries_yaml_over_to_the_form(self, send, host):
        text = "name: chat\nhost: gpu-07\nmodel: /models/m\nserved_model_name: m\nextra_args: {--seed: 3}\n"
        answer = send(
            reverse("deployments:new"),
            {"as": "yaml", "then": "form", "host": host.pk, "text": text},
            "operator",
        )
        assert "--seed 3" in text_of(answer)
        assert not Deployment.objects.exists()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", "Not A Name"),
            ("model", "relative/path"),
            ("instances", "0"),
            ("instances", "many"),
            ("gpu_memory_utilization", "1.5"),
            ("kv_cache_memory_bytes", "some"),
            ("port", "80"),
            ("address", "nowhere"),
            ("extra_args", "--"),
            ("env", "1X=2"),
            ("secrets", "TOKEN=hf_abcdefgh/$"),
            ("dtype", "int3"),
        ],
    )
    def test_says_what_is_wrong_beside_the_field(self, send, host, field, value):
        answer = send(reverse("deployments:new"), filled(host, **{field: value}), "operator")
        assert answer.status_code == 422
        assert field in answer.context["draft"].bound.errors
        assert not Deployment.objects.exists()

    def test_says_the_line_of_a_yaml_error(self, send, host):
        values = {"as": "yaml", "host": host.pk, "text": "name: chat\nhost: [unclosed\n"}
        assert "Line " in text_of(send(reverse("deployments:new"), values, "operator"), 422)

    def test_refuses_a_name_that_is_taken(self, send, host, deployment):
        answer = send(reverse("deployments:new"), filled(host, name="qwen-chat"), "operator")
        assert "Choose another name." in text_of(answer, 422)

    def test_refuses_a_host_of_another_environment(self, send, host):
        other = factories.make_host(factories.make_environment("Elsewhere"), "other")
        text = "name: chat\nhost: other\nmodel: /models/m\nserved_model_name: m\n"
        answer = send(reverse("deployments:new"), {"as": "yaml", "host": other.pk, "text": text}, "operator")
        assert answer.status_code == 422
        assert not Deployment.objects.exists()


class TestRevise:
    def test_makes_the_next_revision(self, send, host, deployment):
        send(reverse("deployments:revise", args=[deployment.pk]), filled(host, name="qwen-chat"), "operator")
        assert list(deployment.revisions.values_list("number", flat=True)) == [2, 1]

    def test_keeps_the_name(self, send, host, deployment):
        send(reverse("deployments:revise", args=[deployment.pk]), filled(host, name="other"), "operator")
        assert spec_of(deployment.revisions.first()).name == "qwen-chat"

    def test_refuses_another_name_in_yaml(self, send, host, deployment):
        text = "name: other\nhost: gpu-07\nmodel: /models/m\nserved_model_name: m\n"
        values = {"as": "yaml", "host": host.pk, "text": text}
        answer = send(reverse("deployments:revise", args=[deployment.pk]), values, "operator")
        assert "The name must stay qwen-chat." in text_of(answer, 422)

    def test_shows_the_newest_revision(self, page, host, deployment):
        path = reverse("deployments:revise", args=[deployment.pk])
        assert "NCCL_DEBUG=INFO" in text_of(page(path, "operator"))
        assert "NCCL_DEBUG: INFO" in text_of(page(path + "?as=yaml", "operator"))


class TestValuesOfVariables:
    """Whoever may not see them sees dots; what they cannot see they cannot lose either."""

    @pytest.fixture
    def blind_operator(self, environment):
        user = person("olaf")
        role = Role.objects.create(name="Blind operator", slug="blind")
        role.permissions.set(
            find_permissions([perm for perm in OPERATE if perm != "deployments.see_environment_values"])
        )
        assign_role(role=role, user=user, environment=environment)
        return user

    def test_are_dots_to_a_viewer(self, page, host, deployment):
        text = text_of(page(reverse("deployments:detail", args=[deployment.pk]), "viewer"))
        assert "NCCL_DEBUG: ••••" in text
        assert "INFO" not in text

    def test_are_dots_in_a_plan(self, page, host, deployment):
        plan = factories.make_plan(deployment, host)
        assert "INFO" not in text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "viewer"))
        assert "INFO" in text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "operator"))

    @pytest.mark.parametrize("tab", ["form", "yaml"])
    def test_are_kept_when_one_revises_who_cannot_see_them(self, client, blind_operator, host, deployment, tab):
        client.force_login(blind_operator)
        path = reverse("deployments:revise", args=[deployment.pk])
        assert "INFO" not in text_of(client.get(path + f"?as={tab}"))
        text = "name: qwen-chat\nhost: gpu-07\nmodel: /models/m\nserved_model_name: m\ninstances: 2\n"
        values = filled(host, env="") if tab == "form" else {"as": "yaml", "host": host.pk, "text": text}
        client.post(path, values)
        assert deployment.revisions.first().number == 2
        assert spec_of(deployment.revisions.first()).env == {"NCCL_DEBUG": "INFO"}


class TestPlan:
    def fresh(self, host):
        host.facts.update(taken_at=timezone.now())

    def test_is_made_and_shown(self, send, page, host, deployment):
        self.fresh(host)
        answer = send(reverse("deployments:plan", args=[deployment.pk]), {}, "operator")
        plan = Plan.objects.get()
        assert answer["Location"] == reverse("deployments:plan-detail", args=[plan.pk])
        text = text_of(page(answer["Location"], "operator"))
        for part in (
            "Start exactly this",
            plan.digest,
            "--served-model-name qwen-chat",
            "127.0.0.1:",
            "weights",
        ):
            assert part in text
        assert not Run.objects.exists()

    def test_gives_every_reason_when_there_is_none(self, send, host):
        self.fresh(host)
        deployment = factories.make_deployment(host, "wrong", model="/models/absent", tensor_parallel=8)
        text = text_of(send(reverse("deployments:plan", args=[deployment.pk]), {}, "operator"), 422)
        assert "MODEL_MISSING" in text
        assert "NOT_ENOUGH_DEVICES" in text
        assert text.count("Next step:") >= 2
        assert not Plan.objects.exists()

    def test_offers_fresh_facts_where_they_are_too_old(self, send, host, deployment):
        text = text_of(send(reverse("deployments:plan", args=[deployment.pk]), {}, "operator"), 422)
        assert "FACTS_TOO_OLD" in text
        assert reverse("hosts:refresh", args=[host.pk]) in text

    def test_is_run_by_its_digest(self, send, host, deployment):
        now = factories.NOW.replace(year=2100)
        plan = factories.make_plan(deployment, host, expires_at=now)
        path = reverse("deployments:plan-run", args=[plan.pk])
        assert "PLAN_DIFFERS" in text_of(send(path, {"digest": "0" * 64}, "operator"), 422)
        assert not Run.objects.exists()
        # Another run of the deployment waits for a worker.
        factories.make_run(factories.make_plan(deployment, host, launches=0), state="queued")
        assert "RUN_ACTIVE" in text_of(send(path, {"digest": plan.digest}, "operator"), 422)

    def test_that_has_expired_offers_no_button(self, page, host, deployment):
        plan = factories.make_plan(deployment, host, expires_at=factories.NOW)
        text = text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "operator"))
        assert "Start exactly this" not in text
        assert "can no longer be carried out" in text

    def test_shows_a_viewer_everything_but_the_button(self, page, host, deployment):
        plan = factories.make_plan(deployment, host, expires_at=factories.NOW.replace(year=2100))
        text = text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "viewer"))
        assert plan.digest in text
        assert "Start exactly this" not in text

    def test_names_secrets_and_shows_none(self, page, host, deployment):
        plan = factories.make_plan(deployment, host)
        assert "credential hub token" in text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "operator"))

    def test_is_dropped_and_its_launches_with_it(self, send, host, deployment):
        plan = factories.make_plan(deployment, host)
        send(reverse("deployments:plan-drop", args=[plan.pk]), {}, "operator")
        assert Plan.objects.get(pk=plan.pk).state == Plan.State.DROPPED

    def test_shows_the_change_to_what_runs(self, page, host, deployment):
        factories.make_launch(deployment, host, **factories.ready_values(host.devices.first()))
        spec = factories.make_spec(host, "qwen-chat", max_model_len=8192)
        add_revision(deployment=deployment, spec=spec, by=factories.BY, now=factories.NOW)
        plan = factories.make_plan(deployment, host, launches=0)
        assert "+max_model_len: 8192" in text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "operator"))


class TestStop:
    def test_plans_the_stop_of_all_that_live(self, send, page, host, deployment):
        for slot, device in enumerate(host.devices.all()):
            factories.make_launch(deployment, host, slot=slot, **factories.ready_values(device))
        answer = send(reverse("deployments:stop", args=[deployment.pk]), {}, "operator")
        text = text_of(page(answer["Location"], "operator"))
        assert "Stop exactly these" in text
        assert "qwen-chat-0" in text
        assert "qwen-chat-1" in text

    def test_plans_the_stop_of_the_chosen_one(self, send, page, host, deployment):
        launches = [
            factories.make_launch(deployment, host, slot=slot, **factories.ready_values(device))
            for slot, device in enumerate(host.devices.all())
        ]
        answer = send(reverse("deployments:stop", args=[deployment.pk]), {"launch": launches[1].pk}, "operator")
        stops = factories.intent_of(Plan.objects.get(pk=answer["Location"].rstrip("/").rsplit("/", 1)[1]))["stops"]
        assert [stop["launch_id"] for stop in stops] == [str(launches[1].pk)]

    @pytest.mark.parametrize("wrong", ["nonsense", "00000000-0000-4000-8000-000000000000"])
    def test_never_widens_a_wrong_choice_to_all(self, send, host, deployment, wrong):
        factories.make_launch(deployment, host, **factories.ready_values(host.devices.first()))
        answer = send(reverse("deployments:stop", args=[deployment.pk]), {"launch": wrong}, "operator")
        assert "NOTHING_TO_STOP" in text_of(answer, 422)

    def test_refuses_where_nothing_runs(self, send, host, deployment):
        assert "NOTHING_TO_STOP" in text_of(
            send(reverse("deployments:stop", args=[deployment.pk]), {}, "operator"), 422
        )


class TestRestart:
    @pytest.fixture
    def serving(self, host, deployment):
        """One launch on each device, holding what a planned one holds; a newer revision wants as many."""
        host.facts.update(taken_at=timezone.now())
        launches = []
        for slot, device in enumerate(host.devices.all()):
            launch = factories.make_launch(deployment, host, slot=slot, **factories.ready_values(device))
            Reservation.objects.create(device=device, launch=launch, bytes=40 * factories.GIB, since=factories.NOW)
            launches.append(launch)
        add_revision(
            deployment=deployment,
            spec=factories.make_spec(host, deployment.name, instances=len(launches)),
            by=factories.BY,
            now=factories.NOW,
        )
        return launches

    def restart(self, send, deployment, who="operator", **data):
        return send(reverse("deployments:restart", args=[deployment.pk]), data, who)

    def test_is_planned_for_all_that_live_and_says_what_it_means(self, send, page, deployment, serving):
        text = text_of(page(self.restart(send, deployment)["Location"], "operator"))
        assert "Restart exactly these" in text
        assert "One at a time: the next is stopped when the one before it serves." in text
        assert "Replaces" in text
        assert "Change to the running revision" in text

    def test_is_planned_for_the_chosen_one(self, send, deployment, serving):
        self.restart(send, deployment, launch=serving[1].pk)
        (entry,) = factories.intent_of(Plan.objects.get(kind=Plan.Kind.RESTART))["launches"]
        assert entry["replaces"] == str(serving[1].pk)

    def test_takes_as_many_at_a_time_as_the_form_says(self, send, deployment, serving):
        self.restart(send, deployment, at_a_time=2)
        assert factories.intent_of(Plan.objects.get(kind=Plan.Kind.RESTART))["order"]["side_by_side"] == 2

    @pytest.mark.parametrize("absurd", ["", "0", "-1", "two", "99999999999", "٣"])
    def test_takes_one_at_a_time_where_the_form_says_nothing_sensible(self, send, deployment, serving, absurd):
        self.restart(send, deployment, at_a_time=absurd)
        assert factories.intent_of(Plan.objects.get(kind=Plan.Kind.RESTART))["order"]["side_by_side"] == 1

    def test_shows_those_that_serve_until_their_turn_has_come(self, send, page, deployment, serving):
        self.restart(send, deployment)
        text = text_of(page(reverse("deployments:detail", args=[deployment.pk]), "operator"))
        assert f"{len(serving)} of {len(serving)} ready" in text

    def test_shows_one_launch_a_slot_while_it_runs(self, send, page, deployment, serving):
        self.restart(send, deployment)
        plan = Plan.objects.get(kind=Plan.Kind.RESTART)
        run = factories.make_run(plan)
        first, second = serving[:2]
        Launch.objects.filter(pk=first.pk).update(state="stopped")
        heir = plan.launches.get(replaces=first)
        Launch.objects.filter(pk=heir.pk).update(state="starting", launched_at=factories.NOW)
        text = text_of(page(reverse("deployments:run-detail", args=[run.pk]), "operator"))
        assert reverse("deployments:instance", args=[heir.pk]) in text
        assert reverse("deployments:instance", args=[first.pk]) not in text
        assert reverse("deployments:instance", args=[second.pk]) in text
        assert reverse("deployments:instance", args=[plan.launches.get(replaces=second).pk]) not in text

    def test_needs_the_right_to_stop_too(self, client, environment, deployment, serving):
        user = person("starter")
        role = Role.objects.create(name="Starter", slug="starter")
        role.permissions.set(find_permissions(["deployments.view_deployment", "deployments.start_deployment"]))
        assign_role(role=role, user=user, environment=environment)
        client.force_login(user)
        answer = client.post(reverse("deployments:restart", args=[deployment.pk]))
        assert answer.status_code == 403


class TestSweep:
    def test_plans_orphans_alone(self, send, host, deployment):
        devices = list(host.devices.all())
        factories.make_launch(deployment, host, slot=0, **factories.ready_values(devices[0]))
        orphan = factories.make_launch(deployment, host, slot=1, **factories.orphaned_values(devices[1]))
        send(reverse("deployments:sweep", args=[deployment.pk]), {}, "operator")
        plan = Plan.objects.get(kind=Plan.Kind.SWEEP)
        assert [stop["launch_id"] for stop in factories.intent_of(plan)["stops"]] == [str(orphan.pk)]

    def test_names_each_process_with_its_proof_and_what_is_left_alone(self, page, send, host, deployment):
        device = host.devices.first()
        orphan = factories.make_launch(deployment, host, slot=1, **factories.orphaned_values(device))
        orphan.processes = [seen(71, "VLLM::EngineCore", proof="session"), seen(72, "tracker", proof="marker")]
        orphan.left_alone = [
            {"pid": 99, "start_time": 9, "title": "x::EngineCore", "user": "bob", "why": "OTHER_USER"},
            {"pid": 71, "start_time": 5, "title": "VLLM::EngineCore", "user": "ann", "why": "OTHER_LAUNCH"},
        ]
        orphan.save()
        send(reverse("deployments:sweep", args=[deployment.pk]), {}, "operator")
        plan = Plan.objects.get(kind=Plan.Kind.SWEEP)
        assert [(p["pid"], p["proof"]) for p in factories.intent_of(plan)["stops"][0]["processes"]] == [
            (71, "session"),
            (72, "marker"),
        ]
        text = text_of(page(reverse("deployments:plan-detail", args=[plan.pk]), "operator"))
        assert "in the session of the launch, started after its leader" in text
        assert "the launch id is in its environment" in text
        assert "it belongs to another user" in text
        assert "it carries the id of another launch" not in text, "what is swept itself is not left alone"


def seen(pid: int, title: str, *, proof: str) -> dict:
    return {"pid": pid, "start_time": 5, "title": title, "role": "engine_core", "proof": proof}


class TestDeployment:
    def test_hides_buttons_from_a_viewer(self, page, host, deployment):
        text = text_of(page(reverse("deployments:detail", args=[deployment.pk]), "viewer"))
        for name in ("plan", "stop", "revise"):
            assert reverse(f"deployments:{name}", args=[deployment.pk]) not in text

    def test_shows_a_failed_instance_with_its_cause(self, page, host, deployment):
        factories.make_launch(deployment, host, **factories.failed_values())
        text = text_of(page(reverse("deployments:detail", args=[deployment.pk]), "viewer"))
        assert "NO_MEMORY_FOR_KV_CACHE" in text

    def test_offers_no_new_plan_while_a_run_goes_on(self, page, host, deployment):
        factories.make_run(factories.make_plan(deployment, host))
        text = text_of(page(reverse("deployments:detail", args=[deployment.pk]), "operator"))
        assert f'action="{reverse("deployments:plan", args=[deployment.pk])}"' not in text


class TestRun:
    @pytest.mark.parametrize(
        "state", ["queued", "running", "succeeded", "failed", "precondition_failed", "cancelled", "errored"]
    )
    def test_is_shown_in_every_state(self, page, host, deployment, state):
        run = factories.make_run(factories.make_plan(deployment, host), state=state)
        text = text_of(page(reverse("deployments:run-detail", args=[run.pk]), "viewer"))
        assert state.replace("_", " ") in text

    def test_shows_its_steps_and_the_phases_of_each_instance(self, page, host, deployment):
        plan = factories.make_plan(deployment, host)
        plan.launches.update(state="starting", phase="loading", progress={"percent": 52, "load_percent": 55})
        run = factories.make_run(plan)
        text = text_of(page(reverse("deployments:run-detail", args=[run.pk]), "viewer"))
        assert "Loading weights" in text
        assert 'value="52"' in text
        assert "55 %" in text

    def test_shows_why_it_failed(self, page, host, deployment):
        problem = {
            "code": "PORT_TAKEN",
            "message": "Port 8000 is taken.",
            "next_step": "Plan again.",
            "numbers": {"port": 8000},
        }
        run = factories.make_run(factories.make_plan(deployment, host), state="failed", problem=problem)
        text = text_of(page(reverse("deployments:run-detail", args=[run.pk]), "viewer"))
        for part in ("Port 8000 is taken.", "PORT_TAKEN", "Plan again."):
            assert part in text

    def test_is_cancelled_once(self, send, host, deployment):
        run = factories.make_run(factories.make_plan(deployment, host))
        path = reverse("deployments:run-cancel", args=[run.pk])
        send(path, {}, "operator")
        first = Run.objects.get(pk=run.pk).cancel_asked_at
        send(path, {}, "operator")
        assert Run.objects.get(pk=run.pk).cancel_asked_at == first is not None
