import json
from dataclasses import replace

import pytest

from audit.canonical import digest
from deployments.planning.build_start import build_start_plan
from deployments.planning.plan import Plan, RunningInstance, Taken
from deployments.planning.refusals import Refused
from tests.planning.factories import (
    GIB,
    H200_TOTAL,
    QWEN3_0P6B,
    facts_body,
    gpu,
    make_facts,
    make_host,
    make_revision,
    make_spec,
    plan_start,
)

CPU_VLLM = [
    {
        "python": "/opt/vllm/bin/python",
        "executable": "/opt/vllm/bin/vllm",
        "version": "0.32.0+cpu",
        "kind": "venv",
    }
]


def cpu_facts(**changes):
    return make_facts(gpus=(), vllm=CPU_VLLM, **changes)


def running(slot, **changes):
    return RunningInstance(
        **{
            "launch_id": f"old-{slot}",
            "instance": f"chat-{slot}",
            "slot": slot,
            "slot_key": f"5-{slot}",
            "devices": ("GPU-0",),
            "port": 8000 + slot,
        }
        | changes
    )


def codes(result):
    assert isinstance(result, Refused), result
    return [reason.code for reason in result.reasons]


def planned(**arguments):
    result = plan_start(**arguments)
    assert isinstance(result, Plan), result
    return result


class TestIntent:
    def test_holds_all_that_decides_what_runs(self):
        plan = planned(spec=make_spec(max_model_len=2048, max_num_seqs=32, secrets={"VLLM_API_KEY": "fleet key"}))
        (launch,) = plan.launches
        assert plan.intent["host"] == {
            "id": 7,
            "name": "gpu01",
            "machine_id": "m-1",
            "host_key_fingerprint": "SHA256:abc",
        }
        assert plan.intent["revision"] == {"id": 3, "number": 2, "digest": "d" * 64}
        assert plan.intent["deployment"] == {"id": 5, "name": "chat"}
        assert (launch["launch_id"], launch["instance"], launch["slot_key"]) == (
            "launch-1",
            {"name": "chat-0", "slot": 0},
            "5-0",
        )
        assert (launch["devices"], launch["address"], launch["port"]) == (["GPU-0"], "127.0.0.1", 8000)
        assert launch["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-0"
        assert launch["secrets"] == {"VLLM_API_KEY": "fleet key"}
        assert launch["reserved_bytes"] == {"GPU-0": int(H200_TOTAL * 0.9)}
        assert (launch["served_name"], launch["task"], launch["model_path"]) == (
            "qwen3",
            "generate",
            "/models/qwen3",
        )
        assert (launch["executable"], launch["vllm_version"]) == ("/opt/vllm/bin/vllm", "0.25.1")
        assert launch["expected"]["max_model_len"] == 2048
        assert launch["expected"]["full_requests"] == launch["expected"]["kv_tokens"] // 2048
        terms = ("weights", "kv_cache", "activations", "runtime", "graphs")
        assert sum(launch["memory"][term] for term in terms) == launch["reserved_bytes"]["GPU-0"]
        assert launch["memory"]["low"] < launch["memory"]["high"] < launch["reserved_bytes"]["GPU-0"]
        assert launch["argv"][launch["argv"].index("--kv-cache-memory-bytes") + 1] == str(launch["memory"]["kv_cache"])
        assert launch["memory"]["pinned"] is True
        assert (plan.kind, plan.order) == ("start", (("launch-1",),))

    def test_is_digested_over_its_canonical_bytes(self):
        plan = planned()
        assert plan.digest == digest(plan.bytes)
        assert json.loads(plan.bytes) == json.loads(json.dumps(plan.intent))
        assert b'"form":1' in plan.bytes

    def test_has_a_digest_that_stays(self):
        plan = planned(spec=make_spec(max_model_len=2048, max_num_seqs=32))
        assert plan.digest == "a63b08aa94aa25a5eb834df1c7fac30156c363d28c1996889878aff5be0288df"

    def test_is_the_same_for_the_same_arguments_and_another_for_any_change(self):
        plan = planned()
        assert planned().bytes == plan.bytes
        others = [
            planned(spec=make_spec(port=8001)),
            planned(spec=make_spec(served_model_name="b")),
            planned(spec=make_spec(env={"NCCL_DEBUG": "INFO"})),
            planned(host=make_host(host_key_fingerprint="SHA256:other")),
        ]
        assert len({other.digest for other in [*others, plan]}) == 5

    def test_does_not_hold_the_age_of_the_facts(self):
        assert planned(age=1).digest == planned(age=200).digest


class TestDevicesAndMemory:
    def test_shares_nine_tenths_of_a_gpu_among_its_instances(self):
        plan = planned(spec=make_spec(instances=3, max_model_len=2048))
        assert [launch["reserved_bytes"] for launch in plan.launches] == [{"GPU-0": int(H200_TOTAL * 0.3)}] * 3

    def test_promises_within_five_percent_of_the_measured_cache(self):
        plan = planned(spec=make_spec(instances=3, max_model_len=2048, max_num_seqs=32))
        assert 0.9 < plan.launches[0]["expected"]["kv_tokens"] / 377_856 <= 1

    def test_takes_a_share_of_what_the_driver_leaves(self):
        facts = make_facts(gpus=(gpu(0, memory_reserved=616 * 2**20),))
        plan = planned(spec=make_spec(instances=3, max_model_len=2048), facts=facts)
        assert plan.launches[0]["reserved_bytes"] == {"GPU-0": int((H200_TOTAL - 616 * 2**20) * 0.3)}

    def test_plans_with_what_a_launch_of_the_same_kind_held(self):
        wishes = {"instances": 3, "max_model_len": 2048, "max_num_seqs": 32}
        first = planned(spec=make_spec(**wishes)).launches[0]
        held = first["memory"]["runtime"] + first["memory"]["graphs"] + 2**30
        overheads = {first["compile_key"]: held}
        second = planned(spec=make_spec(**wishes), taken=Taken(overheads=overheads)).launches[0]
        assert second["memory"]["measured"] is True
        assert second["memory"]["runtime"] + second["memory"]["graphs"] == held
        assert second["memory"]["kv_cache"] == first["memory"]["kv_cache"] - 2**30
        assert second["reserved_bytes"] == first["reserved_bytes"]
        other = planned(spec=make_spec(**wishes | {"max_num_seqs": 64}), taken=Taken(overheads=overheads)).launches[0]
        assert other["memory"]["measured"] is False

    @pytest.mark.parametrize("devices", ["auto", [0, 1]])
    def test_puts_a_slot_that_failed_back_into_its_gap(self, devices):
        """Two of three live on GPU 0 and all three on GPU 1: the sixth gets the gap, and the share of the others."""
        spec = make_spec(instances=6, devices=devices, max_model_len=2048)
        facts = make_facts(gpus=(gpu(0), gpu(1)))
        whole = planned(spec=spec, facts=facts)
        sizes = {launch["instance"]["slot"]: launch["reserved_bytes"] for launch in whole.launches}
        kept = [
            running(slot, devices=tuple(sizes[slot]), reserved=sizes[slot], port=8000 + slot)
            for slot in range(6)
            if slot != 2
        ]
        reserved = {uuid: sum(item.reserved.get(uuid, 0) for item in kept) for uuid in ("GPU-0", "GPU-1")}
        plan = planned(spec=spec, facts=facts, taken=Taken(instances=tuple(kept), reserved=reserved))
        assert [(e["instance"]["slot"], e["reserved_bytes"]) for e in plan.launches] == [(2, sizes[2])]

    def test_spreads_instances_over_all_gpus(self):
        plan = planned(spec=make_spec(instances=6, max_model_len=2048), facts=make_facts(gpus=(gpu(0), gpu(1))))
        assert [launch["devices"][0] for launch in plan.launches] == ["GPU-0", "GPU-1"] * 3

    def test_prefers_the_emptiest_gpu(self):
        facts = make_facts(gpus=(gpu(0, memory_used=90 * GIB), gpu(1)))
        assert planned(facts=facts).launches[0]["devices"] == ["GPU-1"]

    def test_leaves_out_a_full_gpu_where_another_can_hold_all(self):
        facts = make_facts(gpus=(gpu(0, memory_used=139 * GIB), gpu(1)))
        plan = planned(spec=make_spec(instances=2, max_model_len=2048), facts=facts)
        assert {launch["devices"][0] for launch in plan.launches} == {"GPU-1"}

    def test_takes_devices_by_index_and_by_uuid(self):
        facts = make_facts(gpus=(gpu(0), gpu(1), gpu(2)))
        plan = planned(spec=make_spec(devices=[2, "GPU-0"], tensor_parallel=2), facts=facts)
        assert plan.launches[0]["devices"] == ["GPU-2", "GPU-0"]
        assert set(plan.launches[0]["reserved_bytes"]) == {"GPU-2", "GPU-0"}

    def test_pins_the_cache_and_asks_vllm_only_for_what_is_needed(self):
        plan = planned(spec=make_spec(instances=3, kv_cache_memory_bytes="40GiB", max_model_len=2048, max_num_seqs=32))
        argv = plan.launches[0]["argv"]
        assert argv[argv.index("--kv-cache-memory-bytes") + 1] == str(40 * GIB)
        assert 0.29 < float(argv[argv.index("--gpu-memory-utilization") + 1]) < 0.31
        assert plan.launches[0]["expected"]["kv_tokens"] == 374_480

    def test_refuses_what_does_not_fit_and_says_by_how_much(self):
        result = plan_start(spec=make_spec(instances=3, kv_cache_memory_bytes="60GiB", max_model_len=2048))
        assert codes(result) == ["MEMORY_TOO_SMALL"]
        numbers = result.reasons[0].numbers
        assert numbers["missing"] == numbers["wanted"] - (numbers["total"] - numbers["reserve"])
        assert f"{numbers['missing'] / GIB:.2f} GiB too much" in result.reasons[0].message

    def test_refuses_a_gpu_that_others_hold(self):
        result = plan_start(facts=make_facts(gpus=(gpu(0, memory_used=60 * GIB),)))
        assert codes(result) == ["MEMORY_TOO_SMALL"]
        assert result.reasons[0].numbers["foreign"] == 60 * GIB

    def test_counts_our_reservations_and_not_their_use_again(self):
        facts = make_facts(gpus=(gpu(0, memory_used=40 * GIB),))
        taken = Taken(reserved={"GPU-0": 42 * GIB})
        plan = planned(spec=make_spec(gpu_memory_utilization=0.3), facts=facts, taken=taken)
        assert "foreign" not in {segment.kind for segment in plan.memory[0].segments}

    def test_refuses_weights_larger_than_the_share(self):
        models = [facts_body()["models"][0] | {"weight_bytes": 200 * GIB}]
        result = plan_start(facts=make_facts(models=models))
        assert "MEMORY_TOO_SMALL" in codes(result)
        assert "leave nothing for the KV cache" in result.reasons[0].message

    def test_refuses_a_cache_that_does_not_hold_one_request_and_offers_the_longest(self):
        result = plan_start(spec=make_spec(kv_cache_memory_bytes="1GiB"))
        assert codes(result) == ["KV_CACHE_TOO_SMALL"]
        longest = result.reasons[0].numbers["longest"]
        assert isinstance(plan_start(spec=make_spec(kv_cache_memory_bytes="1GiB", max_model_len=longest)), Plan)

    def test_draws_bars_that_add_up(self):
        taken = Taken(reserved={"GPU-0": 30 * GIB})
        facts = make_facts(gpus=(gpu(0, memory_used=35 * GIB),))
        plan = planned(spec=make_spec(instances=2, gpu_memory_utilization=0.2), facts=facts, taken=taken)
        (bar,) = plan.memory
        assert sum(segment.bytes for segment in bar.segments) == bar.total == H200_TOTAL
        sizes = {(segment.kind, segment.launch_id): segment.bytes for segment in bar.segments}
        assert sizes["ours", None] == 30 * GIB
        assert sizes["foreign", None] == 5 * GIB
        per_launch = sum(sizes[kind, "launch-1"] for kind in ("weights", "kv_cache", "overhead"))
        assert per_launch == plan.launches[0]["reserved_bytes"]["GPU-0"]

    @pytest.mark.parametrize(
        ("changes", "gpus", "code"),
        [
            ({"devices": [3]}, (gpu(0),), "DEVICE_UNKNOWN"),
            ({"devices": ["GPU-9"]}, (gpu(0),), "DEVICE_UNKNOWN"),
            ({"devices": ["cpu"]}, (gpu(0),), "DEVICE_UNKNOWN"),
            ({"devices": [0]}, (gpu(0, mig="enabled"),), "DEVICE_PARTITIONED"),
            ({}, (gpu(0, memory_total=None),), "DEVICE_MEMORY_UNKNOWN"),
            ({"tensor_parallel": 2}, (gpu(0),), "NOT_ENOUGH_DEVICES"),
            ({"tensor_parallel": 2, "devices": [0]}, (gpu(0), gpu(1)), "NOT_ENOUGH_DEVICES"),
        ],
    )
    def test_refuses_devices_that_cannot_be_had(self, changes, gpus, code):
        assert codes(plan_start(spec=make_spec(**changes), facts=make_facts(gpus=gpus))) == [code]

    def test_uses_the_slices_of_a_divided_gpu(self):
        part = gpu(0, uuid="MIG-1", mig="instance", memory_total=20 * GIB)
        plan = planned(
            spec=make_spec(max_model_len=2048, max_num_seqs=32),
            facts=make_facts(gpus=(gpu(0, mig="enabled"), part)),
        )
        assert plan.launches[0]["devices"] == ["MIG-1"]
        assert plan.launches[0]["env"]["CUDA_VISIBLE_DEVICES"] == "MIG-1"


class TestHostWithoutGpus:
    def test_plans_on_its_memory_with_pinned_bytes(self):
        spec = make_spec(
            model="/models/tiny",
            served_model_name="tiny",
            max_model_len=512,
            kv_cache_memory_bytes="64MiB",
            extra_args={"--enforce-eager": True},
        )
        (launch,) = planned(spec=spec, facts=cpu_facts()).launches
        assert launch["argv"] == [
            "/opt/vllm/bin/vllm",
            "serve",
            "/models/tiny",
            "--host",
            "127.0.0.1",
            "--port",
            "8000",
            "--served-model-name",
            "tiny",
            "--max-model-len",
            "512",
            "--kv-cache-memory-bytes",
            "67108864",
            "--enforce-eager",
        ]
        assert launch["expected"] == {"max_model_len": 512, "kv_tokens": 131_072, "full_requests": 256}
        assert launch["reserved_bytes"] == {"cpu": 2 * GIB + 64 * 2**20 + 1_600_000}
        assert launch["devices"] == ["cpu"]

    def test_always_pins_a_cache(self):
        (launch,) = planned(spec=make_spec(model="/models/tiny"), facts=cpu_facts()).launches
        assert launch["expected"]["kv_tokens"] == 2_097_152

    def test_starts_one_after_another(self):
        plan = planned(spec=make_spec(model="/models/tiny", instances=2), facts=cpu_facts())
        assert plan.order == (("launch-1",), ("launch-2",))

    def test_refuses_more_than_its_memory(self):
        result = plan_start(spec=make_spec(model="/models/tiny", instances=9), facts=cpu_facts())
        assert codes(result) == ["MEMORY_TOO_SMALL"]

    def test_warns_of_a_build_that_is_not_for_it(self):
        plan = planned(spec=make_spec(model="/models/tiny"), facts=make_facts(gpus=()))
        assert "NOT_A_CPU_BUILD" in {note.code for note in plan.notes}


class TestPorts:
    def test_go_up_from_the_first(self):
        plan = planned(spec=make_spec(instances=3, port=9089, max_model_len=2048))
        assert [launch["port"] for launch in plan.launches] == [9089, 9090, 9091]

    def test_avoid_what_is_taken(self):
        plan = planned(spec=make_spec(instances=2, max_model_len=2048), taken=Taken(ports=frozenset({8000, 8002})))
        assert [launch["port"] for launch in plan.launches] == [8001, 8003]

    def test_are_refused_when_named_and_taken(self):
        result = plan_start(
            spec=make_spec(instances=2, port=9089, max_model_len=2048), taken=Taken(ports=frozenset({9090}))
        )
        assert codes(result) == ["PORT_TAKEN"]
        assert result.reasons[0].numbers == {"port": 9090}

    def test_are_refused_when_none_is_free(self):
        assert codes(plan_start(taken=Taken(ports=frozenset(range(8000, 10000))))) == ["NO_FREE_PORT"]

    def test_are_checked_again_before_each_start(self):
        plan = planned(spec=make_spec(instances=2, max_model_len=2048))
        wanted = {
            (item.launch_id, item.subject, item.wanted) for item in plan.preconditions if item.code == "port_free"
        }
        assert wanted == {("launch-1", "127.0.0.1", 8000), ("launch-2", "127.0.0.1", 8001)}


class TestRunningInstances:
    def test_stay_and_only_the_missing_ones_start(self):
        taken = Taken(
            instances=(running(0, revision_number=1), running(2, revision_number=2)),
            ports=frozenset({8000, 8002}),
        )
        plan = planned(spec=make_spec(instances=3, gpu_memory_utilization=0.2), taken=taken)
        assert [launch["instance"]["slot"] for launch in plan.launches] == [1]
        assert [(note.code, note.level) for note in plan.notes] == [
            ("KEPT_OTHER_REVISION", "warning"),
            ("KEPT", "info"),
        ]

    def test_are_the_reason_when_nothing_is_left_to_start(self):
        assert codes(plan_start(taken=Taken(instances=(running(0),)))) == ["ALREADY_RUNNING"]


class TestPreconditions:
    def test_name_everything_that_can_change_until_the_run(self):
        plan = planned()
        found = {item.code: (item.subject, item.wanted) for item in plan.preconditions}
        assert found == {
            "host_key": ("gpu01", "SHA256:abc"),
            "machine_id": ("gpu01", "m-1"),
            "facts_age_s": ("gpu01", 3600),
            "vllm_version": ("/opt/vllm/bin/vllm", "0.25.1"),
            "model_present": ("/models/qwen3", "/models/qwen3"),
            "slot_free": ("5-0", "launch-1"),
            "port_free": ("127.0.0.1", 8000),
            "free_bytes": ("GPU-0", int(H200_TOTAL * 0.9)),
        }


class TestVllm:
    def test_is_the_newest_release_when_the_choice_is_open(self):
        versions = ["0.9.2", "0.32.0", "0.33.0.dev3", "0.25.1"]
        found = [
            {
                "python": f"/opt/{v}/bin/python",
                "executable": f"/opt/{v}/bin/vllm",
                "version": v,
                "kind": "venv",
            }
            for v in versions
        ]
        assert planned(facts=make_facts(vllm=found)).launches[0]["vllm_version"] == "0.32.0"

    @pytest.mark.parametrize("path", ["/opt/vllm", "/opt/vllm/bin/vllm", "/opt/vllm/bin/python", "/opt/x/../vllm/"])
    def test_can_be_named_by_environment_command_or_python(self, path):
        assert planned(spec=make_spec(vllm=path)).launches[0]["executable"] == "/opt/vllm/bin/vllm"

    @pytest.mark.parametrize(
        ("changes", "vllm", "code"),
        [
            ({}, [], "NO_VLLM"),
            ({"vllm": "/opt/other"}, None, "VLLM_NOT_FOUND"),
            ({"vllm": "/home/me/vllm"}, None, "PATH_OUTSIDE_ROOTS"),
            ({"vllm": "/opt/../home/me/vllm"}, None, "PATH_OUTSIDE_ROOTS"),
            (
                {},
                [{"python": "/home/me/bin/python", "executable": None, "version": "0.25.1"}],
                "PATH_OUTSIDE_ROOTS",
            ),
            (
                {},
                [{"python": "/opt/v/bin/python", "executable": None, "version": None}],
                "VLLM_VERSION_UNKNOWN",
            ),
            (
                {"kv_cache_memory_bytes": "90GiB"},
                [{"python": "/opt/v/bin/python", "executable": None, "version": "0.9.2"}],
                "FLAG_UNKNOWN_IN_VERSION",
            ),
        ],
    )
    def test_is_refused_with_the_reason(self, changes, vllm, code):
        facts = make_facts() if vllm is None else make_facts(vllm=vllm)
        assert codes(plan_start(spec=make_spec(**changes), facts=facts)) == [code]


class TestModel:
    @pytest.mark.parametrize(
        ("changes", "model", "code"),
        [
            ({"model": "/models/qwen33"}, {}, "MODEL_MISSING"),
            ({"model": "/data/qwen3"}, {}, "PATH_OUTSIDE_ROOTS"),
            ({"model": "/models/../data/qwen3"}, {}, "PATH_OUTSIDE_ROOTS"),
            ({"model": "/modelsX/qwen3"}, {}, "PATH_OUTSIDE_ROOTS"),
            ({}, {"config": None, "config_error": "Expecting value"}, "MODEL_CONFIG_UNREADABLE"),
            ({}, {"weight_bytes": 0, "weight_files": 0}, "MODEL_WITHOUT_WEIGHTS"),
            ({"max_model_len": 99_999}, {}, "CONTEXT_TOO_LONG"),
        ],
    )
    def test_is_refused_with_the_reason(self, changes, model, code):
        facts = make_facts(models=[facts_body()["models"][0] | model])
        assert codes(plan_start(spec=make_spec(**changes), facts=facts)) == [code]

    def test_is_refused_when_its_heads_cannot_be_split(self):
        facts = make_facts(gpus=(gpu(0), gpu(1), gpu(2)))
        result = plan_start(spec=make_spec(tensor_parallel=3), facts=facts)
        assert codes(result) == ["TP_DOES_NOT_DIVIDE_HEADS"]
        assert "1, 2, 4, 8, 16" in result.reasons[0].next_step

    def test_names_models_near_a_wrong_path(self):
        result = plan_start(spec=make_spec(model="/models/qwen33"))
        assert "/models/qwen3" in result.reasons[0].next_step

    def test_starts_with_random_weights_only_with_a_warning(self):
        facts = make_facts(models=[facts_body()["models"][0] | {"weight_bytes": 0}])
        plan = planned(spec=make_spec(extra_args={"--load-format": "dummy"}), facts=facts)
        assert "DUMMY_WEIGHTS" in {note.code for note in plan.notes}
        weights = next(segment.bytes for segment in plan.memory[0].segments if segment.kind == "weights")
        assert weights / GIB == pytest.approx(1.12, abs=0.02)

    def test_of_unknown_shape_is_planned_without_a_promise(self):
        config = QWEN3_0P6B | {"layer_types": ["linear_attention"]}
        plan = planned(facts=make_facts(models=[facts_body()["models"][0] | {"config": config}]))
        assert plan.launches[0]["expected"]["kv_tokens"] is None
        assert "KV_CACHE_UNKNOWN" in {note.code for note in plan.notes}

    def test_may_be_stretched_when_the_deployment_says_so(self):
        spec = make_spec(max_model_len=99_999, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
        assert isinstance(plan_start(spec=spec), Plan)


class TestHost:
    def test_is_refused_when_the_facts_are_old(self):
        result = plan_start(age=301)
        assert codes(result) == ["FACTS_TOO_OLD"]
        assert isinstance(plan_start(age=300), Plan)

    def test_is_refused_when_another_machine_answers(self):
        assert codes(plan_start(facts=make_facts(machine_id="m-2"))) == ["HOST_CHANGED"]

    def test_is_refused_when_the_deployment_is_for_another(self):
        assert codes(plan_start(spec=make_spec(host="gpu02"))) == ["WRONG_HOST"]

    def test_is_refused_when_logging_out_would_kill(self):
        assert codes(plan_start(facts=make_facts(session={"kill_user_processes": True, "linger": True}))) == [
            "LOGOUT_KILLS"
        ]

    def test_is_warned_about_when_logging_out_removes_shared_memory(self):
        plan = planned(facts=make_facts(session={"remove_ipc": True, "linger": False}))
        assert [note.code for note in plan.notes] == ["IPC_REMOVED_AT_LOGOUT"]

    def test_without_roots_allows_nothing(self):
        assert codes(plan_start(host=make_host(model_roots=(), vllm_roots=()))) == ["PATH_OUTSIDE_ROOTS"] * 2


class TestRefused:
    def test_gives_all_reasons_at_once_in_a_steady_order(self):
        spec = make_spec(
            host="gpu02",
            vllm="/opt/none",
            model="/models/none",
            devices=[9],
            port=9000,
            extra_args={"--trust-remote-code": True, "--port": 1},
            env={"LD_PRELOAD": "/x"},
        )
        result = plan_start(spec=spec, age=999, taken=Taken(ports=frozenset({9000})))
        assert codes(result) == [
            "WRONG_HOST",
            "FACTS_TOO_OLD",
            "VLLM_NOT_FOUND",
            "MODEL_MISSING",
            "ARGUMENT_OURS",
            "ARGUMENT_LOADS_CODE",
            "VARIABLE_LOADS_CODE",
            "DEVICE_UNKNOWN",
            "PORT_TAKEN",
        ]
        for reason in result.reasons:
            assert reason.message.endswith("."), reason
            assert reason.next_step.endswith("."), reason

    def test_takes_no_id_for_a_plan_that_is_not_made(self):
        def no_id():
            raise AssertionError("asked for an id")

        result = build_start_plan(
            spec=make_spec(),
            revision=make_revision(),
            host=make_host(),
            facts=replace(make_facts(), machine_id="x"),
            facts_age_s=1,
            taken=Taken(),
            ids=no_id,
            allow_code_loading=False,
        )
        assert codes(result) == ["HOST_CHANGED"]

    def test_has_numbers_that_can_be_stored(self):
        result = plan_start(spec=make_spec(instances=3, kv_cache_memory_bytes="60GiB", max_model_len=2048))
        json.dumps([dict(reason.numbers) for reason in result.reasons])


class TestReserve:
    def test_is_five_percent_of_every_device(self):
        plan = planned(spec=make_spec(gpu_memory_utilization=0.93, max_model_len=2048, max_num_seqs=32))
        kept = next(segment.bytes for segment in plan.memory[0].segments if segment.kind == "reserve")
        assert kept == H200_TOTAL * 5 // 100
        assert codes(plan_start(spec=make_spec(gpu_memory_utilization=0.95))) == ["MEMORY_TOO_SMALL"]
