"""Which failures are tried once more, under which id, and what the plan says of it."""

import pytest

from deployments.planning.plan import Plan
from deployments.planning.retries import may_need_retry, planned_launch, second_try
from hosts.facts.versions import parse_version
from tests.planning.factories import make_facts, make_spec, plan_start

ENTRY = {"launch_id": "a", "port": 8000, "retry": {"launch_id": "b", "on": ["RENDEZVOUS_PORT_TAKEN"]}}


def facts_with(version: str):
    return make_facts(
        vllm=[
            {"python": "/opt/vllm/bin/python", "executable": "/opt/vllm/bin/vllm", "version": version, "kind": "venv"}
        ],
        state_root={"path": "/home/llm/.fleetadmin", "refusal": None},
        cpu={"count": 10, "model": "EPYC"},  # two starts at a time
    )


def planned(version: str, **wishes) -> Plan:
    plan = plan_start(spec=make_spec(max_model_len=2048, max_num_seqs=32, **wishes), facts=facts_with(version))
    assert isinstance(plan, Plan), plan
    return plan


class TestSecondTry:
    def test_follows_the_failure_it_is_for_under_its_own_id(self):
        again = second_try(ENTRY, code="RENDEZVOUS_PORT_TAKEN")
        assert again == {"launch_id": "b", "port": 8000, "retry": None, "replaces": "a"}

    @pytest.mark.parametrize("code", ["PORT_TAKEN", "CUDA_OUT_OF_MEMORY", ""])
    def test_follows_no_other(self, code):
        assert second_try(ENTRY, code=code) is None

    def test_is_the_last(self):
        again = second_try(ENTRY, code="RENDEZVOUS_PORT_TAKEN")
        assert second_try(again, code="RENDEZVOUS_PORT_TAKEN") is None

    def test_is_not_there_in_plans_of_before(self):
        assert second_try({"launch_id": "a"}, code="RENDEZVOUS_PORT_TAKEN") is None

    def test_is_found_by_its_id(self):
        intent = {"launches": [{"launch_id": "z"}, ENTRY]}
        assert planned_launch(intent, "a") == ENTRY
        assert planned_launch(intent, "b")["replaces"] == "a"
        with pytest.raises(LookupError):
            planned_launch(intent, "c")

    @pytest.mark.parametrize(
        ("version", "needed"), [("0.9.2", True), ("0.27.1", True), ("0.28.0", False), ("1.0", False)]
    )
    def test_is_planned_where_workers_meet_at_a_port(self, version, needed):
        assert may_need_retry(parse_version(version)) is needed

    def test_has_an_id_that_was_chosen_with_the_plan(self):
        ids = [(e["launch_id"], e["retry"]["launch_id"]) for e in planned("0.25.1", instances=2).launches]
        assert ids == [("launch-1", "launch-3"), ("launch-2", "launch-4")]
        assert [e["retry"] for e in planned("0.32.0").launches] == [None]


class TestCompileCache:
    def test_is_one_for_all_where_vllm_writes_it_safely(self):
        plan = planned("0.12.0", instances=3)
        assert not [e for e in plan.launches if "VLLM_CACHE_ROOT" in e["env"]]
        assert plan.intent["order"]["leader"] == "launch-1"

    def test_is_one_for_each_slot_before_and_nobody_waits_for_it(self):
        plan = planned("0.11.0", instances=3)
        roots = [e["env"]["VLLM_CACHE_ROOT"] for e in plan.launches]
        assert roots == [f"/home/llm/.fleetadmin/cache/5/{slot}" for slot in range(3)]
        assert plan.intent["order"]["leader"] is None

    def test_is_shared_with_a_warning_where_no_place_is_known(self):
        facts = make_facts(
            vllm=[
                {
                    "python": "/opt/vllm/bin/python",
                    "executable": "/opt/vllm/bin/vllm",
                    "version": "0.11.0",
                    "kind": "venv",
                }
            ]
        )
        plan = plan_start(spec=make_spec(max_model_len=2048), facts=facts)
        assert ("COMPILE_CACHE_SHARED", "warning") in [(note.code, note.level) for note in plan.notes]
