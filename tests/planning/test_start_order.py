"""Who goes first, who may start beside whom, and how many at a time."""

import pytest

from deployments.planning.plan import Taken
from deployments.planning.start_order import Starting, compile_key, count_side_by_side, order_starts, waves
from tests.planning.factories import GIB, QWEN3_0P6B, facts_body, gpu, make_facts, make_spec, plan_start

OLD = [{"python": "/opt/vllm/bin/python", "executable": "/opt/vllm/bin/vllm", "version": "0.9.2", "kind": "venv"}]
FOUR_ON_TWO = ["GPU-0", "GPU-1", "GPU-0", "GPU-1"]


def starting(number, *devices, pinned=True, weights=GIB):
    return Starting(launch_id=f"launch-{number}", devices=devices or ("GPU-0",), pinned=pinned, weights=weights)


def order(*launches, warm=True, cores=64, memory=512 * GIB):
    return order_starts(launches=launches, cores=cores, memory_available=memory, warm=warm)


class TestPinned:
    def test_start_all_at_once_where_the_like_has_served_before(self):
        found = order(*(starting(number) for number in range(3)))
        assert (found.mode, found.leader, found.after) == ("pinned", None, {})

    def test_start_all_at_once_where_the_host_carries_them_all(self):
        found = order(*(starting(number) for number in range(3)), warm=False, cores=16)
        assert (found.side_by_side, found.leader, found.after) == (3, None, {})

    def test_follow_a_leader_where_it_carries_fewer_and_nothing_like_them_was_compiled(self):
        found = order(*(starting(number) for number in range(3)), warm=False, cores=10)
        assert found.leader == "launch-0"
        assert found.after == {"launch-1": ("launch-0",), "launch-2": ("launch-0",)}

    def test_have_no_leader_when_alone(self):
        assert order(starting(0), warm=False).leader is None


class TestGated:
    def test_start_one_after_another_on_a_gpu_and_side_by_side_on_two(self):
        found = order(*(starting(number, gpu, pinned=False) for number, gpu in enumerate(FOUR_ON_TWO)))
        assert found.mode == "gated"
        assert found.after == {"launch-2": ("launch-0",), "launch-3": ("launch-1",)}

    def test_wait_on_every_device_they_use(self):
        found = order(
            starting(0, "GPU-0", pinned=False),
            starting(1, "GPU-1", pinned=False),
            starting(2, "GPU-0", "GPU-1", pinned=False),
        )
        assert found.after == {"launch-2": ("launch-0", "launch-1")}

    def test_are_all_gated_when_one_is_not_pinned(self):
        assert order(starting(0), starting(1, pinned=False)).after == {"launch-1": ("launch-0",)}


class TestSideBySide:
    @pytest.mark.parametrize(
        ("cores", "memory", "count", "expected"),
        [
            (64, 512 * GIB, 24, 12),
            (16, 512 * GIB, 3, 3),
            (4, 512 * GIB, 3, 1),
            (64, 5 * GIB, 24, 4),
            (64, GIB // 2, 24, 1),
            (None, None, 24, 1),
        ],
        ids=["by cores", "by their number", "few cores", "by memory", "one always", "nothing known"],
    )
    def test_is_what_cores_and_memory_carry(self, cores, memory, count, expected):
        launches = [starting(number) for number in range(count)]
        assert count_side_by_side(launches=launches, cores=cores, memory_available=memory) == expected


class TestWaves:
    def test_are_steps_for_people(self):
        after = {"b": ("a",), "c": ("a",), "d": ("b", "c")}
        assert waves(ids="abcd", after=after) == (("a",), ("b", "c"), ("d",))

    def test_of_nothing_are_none(self):
        assert waves(ids=(), after={}) == ()


class TestCompileKey:
    ARGV = ("vllm", "serve", "/m", "--port", "8000", "--max-model-len", "2048")

    def key(self, *argv, version="0.25.1", device="NVIDIA H200"):
        return compile_key(argv=argv or self.ARGV, version=version, device=device)

    def test_is_one_for_all_instances_of_a_deployment(self):
        assert self.key() == self.key("vllm", "serve", "/m", "--port", "8001", "--max-model-len", "2048")

    def test_is_one_for_all_sizes_of_a_pinned_cache_and_another_without(self):
        small, large = (self.key(*self.ARGV, "--kv-cache-memory-bytes", size) for size in ("1", "2"))
        assert small == large != self.key()

    def test_is_another_for_each_thing_that_is_compiled_for(self):
        others = [
            self.key("vllm", "serve", "/m", "--port", "8000", "--max-model-len", "4096"),
            self.key(version="0.26.0"),
            self.key(device="NVIDIA L4"),
        ]
        assert len({self.key(), *others}) == 4


class TestInThePlan:
    def plan(self, *, taken=None, cores=64, **changes):
        facts = make_facts(
            gpus=(gpu(0), gpu(1)),
            cpu={"count": cores},
            memory={"total": 512 * GIB, "available": 500 * GIB},
            **changes,
        )
        spec = make_spec(instances=4, max_model_len=2048, max_num_seqs=32)
        return plan_start(spec=spec, facts=facts, taken=taken or Taken())

    def test_of_a_first_start_one_leads_where_not_all_are_carried_and_the_plan_says_so(self):
        plan = self.plan(cores=15)
        assert plan.order == (("launch-1",), ("launch-2", "launch-3", "launch-4"))
        (note,) = [note for note in plan.notes if note.code == "START_ORDER"]
        assert "One goes first" in note.message

    def test_of_a_later_start_all_go_at_once(self):
        key = self.plan().launches[0]["compile_key"]
        plan = self.plan(cores=15, taken=Taken(compiled=frozenset({key})))
        assert plan.order == (("launch-1", "launch-2", "launch-3", "launch-4"),)
        assert plan.intent["order"]["side_by_side"] == 3

    def test_of_a_first_start_all_go_at_once_where_all_are_carried(self):
        plan = self.plan(cores=20)
        assert plan.order == (("launch-1", "launch-2", "launch-3", "launch-4"),)
        (note,) = [note for note in plan.notes if note.code == "START_ORDER"]
        assert "side by side, 4 at a time" in note.message

    def test_of_a_version_that_cannot_pin_each_gpu_has_one_start_at_a_time(self):
        plan = self.plan(vllm=OLD)
        assert plan.order == (("launch-1", "launch-2"), ("launch-3", "launch-4"))
        assert not any("--kv-cache-memory-bytes" in launch["argv"] for launch in plan.launches)

    def test_of_a_model_whose_cache_is_not_known_each_gpu_has_one_start_at_a_time(self):
        mixed = QWEN3_0P6B | {"layer_types": ["full_attention", "sliding_attention"]}
        plan = self.plan(models=[facts_body()["models"][0] | {"config": mixed}])
        assert plan.intent["order"]["mode"] == "gated"
        assert plan.order == (("launch-1", "launch-2"), ("launch-3", "launch-4"))
