"""Restarts in order: who takes whose place, on which devices and port, and what is refused."""

from itertools import count

import pytest

from deployments.planning.build_restart import build_restart_plan
from deployments.planning.plan import Plan, RunningInstance, Taken
from deployments.planning.refusals import Refused
from tests.planning.factories import GIB, gpu, make_facts, make_host, make_revision, make_spec, plan_start

WISHES = {"max_model_len": 2048, "max_num_seqs": 32}
TWO_GPUS = (gpu(0), gpu(1))


def running(slot: int, *, device: int = 0, size: int = 40 * GIB, port: int | None = None, **changes) -> RunningInstance:
    return RunningInstance(
        **{
            "launch_id": f"old-{slot}",
            "instance": f"chat-{slot}",
            "slot": slot,
            "slot_key": f"5-{slot}",
            "devices": (f"GPU-{device}",),
            "port": port or 8000 + slot,
            "reserved": {f"GPU-{device}": size},
            "revision_number": 1,
        }
        | changes
    )


def taken_by(*instances: RunningInstance, **changes) -> Taken:
    reserved: dict[str, int] = {}
    for instance in instances:
        for uuid, size in instance.reserved.items():
            reserved[uuid] = reserved.get(uuid, 0) + size
    values = {"ports": frozenset(item.port for item in instances), "reserved": reserved, "instances": instances}
    return Taken(**values | changes)


def restart(*targets: RunningInstance, spec=None, taken=None, facts=None, at_a_time=1, cores=64):
    numbers = count(1)
    gpus = [dict(device, memory_used=0) for device in TWO_GPUS]
    return build_restart_plan(
        spec=spec or make_spec(instances=max(len(targets), 1), **WISHES),
        revision=make_revision(),
        host=make_host(),
        facts=facts or make_facts(gpus=gpus, cpu={"count": cores, "model": "EPYC"}),
        facts_age_s=5,
        taken=taken or taken_by(*targets),
        targets=targets,
        at_a_time=at_a_time,
        ids=lambda: f"new-{next(numbers)}",
        allow_code_loading=False,
    )


def planned(*targets, **arguments) -> Plan:
    plan = restart(*targets, **arguments)
    assert isinstance(plan, Plan), plan
    return plan


def codes(result) -> list[str]:
    assert isinstance(result, Refused), result
    return [reason.code for reason in result.reasons]


class TestEachInstance:
    def test_is_replaced_on_its_devices_and_its_port(self):
        plan = planned(running(0, device=1, port=9100), running(1, device=0, port=8003))
        assert [(e["replaces"], e["devices"], e["port"]) for e in plan.launches] == [
            ("old-0", ["GPU-1"], 9100),
            ("old-1", ["GPU-0"], 8003),
        ]
        assert [stop["launch_id"] for stop in plan.stops] == ["old-0", "old-1"]
        assert {stop["reason"] for stop in plan.stops} == {"restart"}
        assert plan.kind == "restart"

    def test_may_use_what_the_one_before_it_holds(self):
        full = [running(slot, size=44 * GIB) for slot in range(3)]
        plan = planned(*full)
        fresh = plan_start(spec=make_spec(instances=3, **WISHES))
        assert [e["reserved_bytes"] for e in plan.launches] == [e["reserved_bytes"] for e in fresh.launches]

    def test_gets_the_port_that_the_new_revision_names(self):
        plan = planned(running(0), running(1), spec=make_spec(instances=2, port=9000, **WISHES))
        assert [e["port"] for e in plan.launches] == [9000, 9001]

    def test_is_not_moved_to_a_port_that_is_held(self):
        spec = make_spec(instances=2, port=8001, **WISHES)
        assert codes(restart(running(0), running(1), spec=spec)) == ["PORT_TAKEN"]

    def test_shares_its_device_with_those_that_stay(self):
        stays = running(1)
        spec = make_spec(instances=2, **WISHES)
        plan = planned(running(0), spec=spec, taken=taken_by(running(0), stays))
        fresh = plan_start(spec=spec, facts=make_facts(gpus=(gpu(0),)))
        assert plan.launches[0]["reserved_bytes"] == fresh.launches[0]["reserved_bytes"]
        assert [note.code for note in plan.notes if note.code.startswith("KEPT")] == ["KEPT_OTHER_REVISION"]


class TestOrder:
    def test_is_one_after_another(self):
        plan = planned(*[running(slot) for slot in range(3)])
        assert plan.intent["order"] == {
            "mode": "rolling",
            "side_by_side": 1,
            "leader": None,
            "after": {"new-2": ["new-1"], "new-3": ["new-2"]},
        }
        assert plan.order == (("new-1",), ("new-2",), ("new-3",))

    def test_is_by_slot_whoever_asked_first(self):
        plan = planned(running(2), running(0), running(1))
        assert [e["replaces"] for e in plan.launches] == ["old-0", "old-1", "old-2"]

    def test_can_be_several_at_a_time_behind_one_that_compiles(self):
        plan = planned(*[running(slot, device=slot % 2) for slot in range(4)], at_a_time=2)
        assert plan.intent["order"]["leader"] == "new-1"
        assert plan.intent["order"]["after"] == {"new-2": ["new-1"], "new-3": ["new-1"], "new-4": ["new-2"]}

    def test_has_no_leader_where_the_cache_is_warm(self):
        targets = [running(slot, device=slot % 2) for slot in range(4)]
        keys = frozenset(e["compile_key"] for e in planned(*targets).launches)
        plan = planned(*targets, at_a_time=2, taken=taken_by(*targets, compiled=keys))
        assert plan.intent["order"]["after"] == {"new-3": ["new-1"], "new-4": ["new-2"]}

    @pytest.mark.parametrize(("cores", "at_a_time", "found"), [(64, 99, 4), (10, 4, 2), (2, 4, 1), (64, 3, 3)])
    def test_is_never_wider_than_the_host_carries(self, cores, at_a_time, found):
        facts = make_facts(
            gpus=TWO_GPUS, cpu={"count": cores, "model": "EPYC"}, memory={"total": 512 * GIB, "available": 500 * GIB}
        )
        targets = [running(slot, device=slot % 2) for slot in range(4)]
        assert planned(*targets, at_a_time=at_a_time, facts=facts).intent["order"]["side_by_side"] == found

    def test_is_one_at_a_time_where_vllm_measures_its_cache(self):
        old = [
            {"python": "/opt/vllm/bin/python", "executable": "/opt/vllm/bin/vllm", "version": "0.9.2", "kind": "venv"}
        ]
        facts = make_facts(gpus=TWO_GPUS, vllm=old, cpu={"count": 64, "model": "EPYC"})
        targets = [running(slot, device=slot % 2) for slot in range(4)]
        assert planned(*targets, at_a_time=4, facts=facts).intent["order"]["side_by_side"] == 1

    def test_says_what_serves_meanwhile(self):
        (note,) = [note for note in planned(*[running(slot) for slot in range(3)]).notes if note.code == "ROLLING"]
        assert "2 of 3 serve meanwhile" in note.message
        (note,) = [note for note in planned(running(0)).notes if note.code == "ROLLING"]
        assert (note.level, "serves nobody" in note.message) == ("warning", True)


class TestRefusals:
    def test_where_nothing_runs(self):
        assert codes(restart()) == ["NOTHING_TO_RESTART"]

    def test_where_the_revision_keeps_none_of_those_asked_for(self):
        assert codes(restart(running(5), spec=make_spec(instances=2, **WISHES))) == ["NOTHING_TO_RESTART"]

    @pytest.mark.parametrize("changes", [{"tensor_parallel": 2}, {"devices": [1]}])
    def test_where_the_revision_would_move_an_instance(self, changes):
        assert codes(restart(running(0), spec=make_spec(**WISHES, **changes))) == ["RESTART_MOVES"]

    def test_where_the_new_revision_needs_more_than_the_old_ones_give(self):
        foreign = make_facts(gpus=(gpu(0, memory_used=(80 + 40) * GIB),))
        result = restart(running(0), running(1), facts=foreign, spec=make_spec(instances=2, **WISHES))
        assert codes(result) == ["MEMORY_TOO_SMALL"]
