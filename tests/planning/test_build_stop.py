from deployments.planning.build_stop import build_stop_plan
from deployments.planning.plan import Plan, RunningInstance
from deployments.planning.refusals import Refused
from tests.planning.factories import make_host


def target(slot):
    return RunningInstance(
        launch_id=f"launch-{slot}",
        instance=f"chat-{slot}",
        slot=slot,
        slot_key=f"5-{slot}",
        devices=("GPU-0",),
        port=8000 + slot,
        reserved={"GPU-0": 1000},
    )


def stop(*targets, **changes):
    return build_stop_plan(
        deployment_id=5,
        deployment_name="chat",
        host=make_host(),
        targets=targets,
        reason="maintenance",
        **changes,
    )


class TestBuildStopPlan:
    def test_stops_all_side_by_side(self):
        plan = stop(target(1), target(0))
        assert isinstance(plan, Plan)
        assert (plan.kind, plan.launches, plan.order) == ("stop", (), (("launch-0", "launch-1"),))
        assert plan.stops[0] == {
            "launch_id": "launch-0",
            "instance": {"name": "chat-0", "slot": 0},
            "slot_key": "5-0",
            "devices": ["GPU-0"],
            "address": "127.0.0.1",
            "port": 8000,
            "reserved_bytes": {"GPU-0": 1000},
            "grace_s": 30,
            "second_term_s": 10,
            "reason": "maintenance",
        }

    def test_does_not_depend_on_the_order_of_its_targets(self):
        assert stop(target(0), target(1)).digest == stop(target(1), target(0)).digest

    def test_checks_the_machine_and_each_launch(self):
        found = {(item.code, item.subject, item.wanted) for item in stop(target(0)).preconditions}
        assert found == {
            ("host_key", "gpu01", "SHA256:abc"),
            ("machine_id", "gpu01", "m-1"),
            ("launch_known", "5-0", "launch-0"),
        }

    def test_can_be_a_sweep(self):
        plan = stop(target(0), kind="sweep")
        assert plan.kind == "sweep"
        assert plan.digest != stop(target(0)).digest

    def test_is_refused_when_nothing_runs(self):
        result = stop()
        assert isinstance(result, Refused)
        assert result.reasons[0].code == "NOTHING_TO_STOP"
