import pytest

from deployments.planning import argument_classes
from deployments.planning.argument_classes import ArgumentClass, classify_argument, classify_variable
from deployments.planning.arguments import LaunchShape, build_argv, build_environment, check_arguments
from deployments.planning.flags import known_flags
from hosts.facts.model import VllmInstallation
from hosts.facts.versions import parse_version
from tests.planning.factories import make_spec

GPU = LaunchShape(devices=("GPU-1", "GPU-2"), port=8001, utilization="0.3")
CPU = LaunchShape(devices=("cpu",), port=9089, kv_cache_bytes=64 * 1024**2)
VLLM = VllmInstallation(python="/opt/v/bin/python", executable="/opt/v/bin/vllm", version="0.25.1", kind="venv")
OURS, PLAIN, LOADS = ArgumentClass.OURS, ArgumentClass.PLAIN, ArgumentClass.CODE_LOADING


def argv(*, version="0.25.1", launch=GPU, installation=VLLM, **changes):
    return build_argv(
        spec=make_spec(**changes), installation=installation, version=parse_version(version), launch=launch
    )


class TestBuildArgv:
    def test_of_an_ordinary_instance(self):
        assert argv() == [
            "/opt/v/bin/vllm",
            "serve",
            "/models/qwen3",
            "--host",
            "127.0.0.1",
            "--port",
            "8001",
            "--served-model-name",
            "qwen3",
            "--gpu-memory-utilization",
            "0.3",
        ]

    def test_of_a_full_instance(self):
        launch = LaunchShape(devices=("GPU-1",), port=8001, utilization="0.29", kv_cache_bytes=42_949_672_960)
        words = argv(
            launch=launch,
            tensor_parallel=2,
            pipeline_parallel=2,
            max_model_len=8192,
            max_num_seqs=32,
            dtype="bfloat16",
            extra_args={
                "seed": 7,
                "--enforce-eager": True,
                "--disable-access-log-for-endpoints": ["/health", "/ping"],
                "--stop": "-x",
            },
        )
        assert words[9:] == [
            "--tensor-parallel-size",
            "2",
            "--pipeline-parallel-size",
            "2",
            "--max-model-len",
            "8192",
            "--max-num-seqs",
            "32",
            "--dtype",
            "bfloat16",
            "--gpu-memory-utilization",
            "0.29",
            "--kv-cache-memory-bytes",
            "42949672960",
            "--disable-access-log-for-endpoints",
            "/health",
            "/ping",
            "--enforce-eager",
            "--seed",
            "7",
            "--stop=-x",
        ]

    def test_runs_the_module_where_the_command_is_missing(self):
        bare = VllmInstallation(python="/opt/v/bin/python", executable=None, version="0.25.1", kind="venv")
        assert argv(installation=bare)[:4] == [
            "/opt/v/bin/python",
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
        ]

    def test_gives_no_share_on_a_host_without_gpus(self):
        words = argv(launch=CPU, version="0.32.0+cpu")
        assert "--gpu-memory-utilization" not in words
        assert words[-2:] == ["--kv-cache-memory-bytes", "67108864"]

    def test_leaves_pinned_bytes_out_where_the_version_lacks_them(self):
        assert "--kv-cache-memory-bytes" not in argv(launch=CPU, version="0.9.2")

    @pytest.mark.parametrize(
        ("version", "words"), [("0.32.0", ["--runner", "pooling"]), ("0.9.2", ["--task", "embed"])]
    )
    def test_says_the_task_in_the_words_of_the_version(self, version, words):
        found = argv(version=version, task="embed")
        assert found[found.index("--served-model-name") + 2 :][:2] == words


class TestBuildEnvironment:
    def test_pins_gpus_by_uuid(self):
        env = build_environment(spec=make_spec(env={"NCCL_DEBUG": "INFO"}), version=parse_version("0.25.1"), launch=GPU)
        assert env == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
            "HF_HUB_OFFLINE": "1",
            "NCCL_DEBUG": "INFO",
            "VLLM_DISABLE_LOG_LOGO": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
        }

    def test_names_no_gpu_on_a_host_without(self):
        env = build_environment(spec=make_spec(), version=parse_version("0.32.0+cpu"), launch=CPU)
        assert not [name for name in env if name.startswith("CUDA")]
        assert "VLLM_CPU_KVCACHE_SPACE" not in env

    def test_gives_whole_gibibytes_where_bytes_cannot_be_pinned(self):
        env = build_environment(spec=make_spec(), version=parse_version("0.9.2"), launch=CPU)
        assert env["VLLM_CPU_KVCACHE_SPACE"] == "1"


class TestClassifyArgument:
    @pytest.mark.parametrize(
        ("flag", "value", "kind"),
        [
            ("--port", "1", OURS),
            ("--por", "1", OURS),
            ("--api-key", "x", OURS),
            ("--data-parallel-size", "2", OURS),
            ("--data-parallel-anything-new", "2", OURS),
            ("--log-config-file", "x", OURS),
            ("--enforce-eager", True, PLAIN),
            ("--no-enable-prefix-caching", True, PLAIN),
            ("--seed", "7", PLAIN),
            ("--trust-remote-code", True, LOADS),
            ("--trust-remote", True, LOADS),
            ("--config", "/x.yaml", LOADS),
            ("--middleware", "a.b", LOADS),
            ("--worker-extension-cls", "a.B", LOADS),
            ("--kv-transfer-config.kv_connector_module_path", "a", LOADS),
            ("--no-such-flag", True, LOADS),
            ("--distributed-executor-backend", "ray", PLAIN),
            ("--distributed-executor-backend", "my.module.Executor", LOADS),
            ("--load-format", "dummy", PLAIN),
            ("--load-format", "runai_streamer", LOADS),
            ("--compilation-config", '{"mode":3}', PLAIN),
            ("--compilation-config", '{"backend":"evil.module"}', LOADS),
            ("--compilation-config.backend", "eager", LOADS),
            ("--speculative-config", '{"method":"ngram","num_speculative_tokens":5}', PLAIN),
            ("--speculative-config", '{"method":"eagle","model":"/other"}', LOADS),
            ("--speculative-config.model", "/other", LOADS),
            ("--generation-config", "/elsewhere", LOADS),
        ],
    )
    def test_sorts_into_three_classes(self, flag, value, kind):
        assert classify_argument(flag=flag, value=value).kind is kind

    def test_lets_nothing_through_that_nobody_looked_at(self):
        plain = {flag for flag in known_flags() if classify_argument(flag=flag, value="1").kind is PLAIN}
        assert plain <= argument_classes._PLAIN
        assert not {flag for flag in plain if "plugin" in flag or "cls" in flag or "path" in flag or "dir" in flag}


class TestClassifyVariable:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("CUDA_VISIBLE_DEVICES", OURS),
            ("VLLM_PORT", OURS),
            ("VLLM_API_KEY", OURS),
            ("FLEETADMIN_LAUNCH", OURS),
            ("VLLM_LOGGING_CONFIG_PATH", OURS),
            ("NCCL_DEBUG", PLAIN),
            ("VLLM_CPU_OMP_THREADS_BIND", PLAIN),
            ("LD_PRELOAD", LOADS),
            ("PYTHONPATH", LOADS),
            ("PYTHONSTARTUP", LOADS),
            ("VLLM_PLUGINS", LOADS),
            ("NCCL_NET_PLUGIN", LOADS),
            ("PATH", LOADS),
            ("SOMETHING_NEW", LOADS),
        ],
    )
    def test_sorts_into_three_classes(self, name, kind):
        assert classify_variable(name=name).kind is kind

    def test_takes_an_api_key_only_as_a_secret(self):
        assert classify_variable(name="VLLM_API_KEY", is_secret=True).kind is PLAIN
        assert classify_variable(name="LD_PRELOAD", is_secret=True).kind is LOADS


def check(*, version="0.32.0", allow=False, **changes):
    return check_arguments(spec=make_spec(**changes), version=parse_version(version), allow_code_loading=allow)


class TestCheckArguments:
    def test_refuses_a_flag_that_is_gone_and_names_what_replaces_it(self):
        ((refusal,), _) = check(extra_args={"--disable-log-requests": True})
        assert refusal.code == "FLAG_UNKNOWN_IN_VERSION"
        assert refusal.message == "vLLM 0.32.0 has no --disable-log-requests; releases 0.6.6.post1 to 0.16.0 have it."
        assert "--enable-log-requests" in refusal.next_step

    def test_refuses_the_ray_flag_of_old_with_its_replacement(self):
        ((refusal,), _) = check(extra_args={"--worker-use-ray": True})
        assert "--distributed-executor-backend ray" in refusal.next_step

    def test_refuses_a_flag_that_came_later(self):
        ((refusal,), _) = check(version="0.9.2", extra_args={"--attention-backend": "FLASH_ATTN"})
        assert refusal.numbers["first"] == "0.13.0"
        assert "choose a vLLM that has it" in refusal.next_step

    def test_refuses_what_loads_code_without_the_permission(self):
        refusals, notes = check(extra_args={"--trust-remote-code": True}, env={"LD_PRELOAD": "/x.so"})
        assert [refusal.code for refusal in refusals] == ["ARGUMENT_LOADS_CODE", "VARIABLE_LOADS_CODE"]
        assert notes == []

    def test_shows_what_loads_code_to_the_approver_with_the_permission(self):
        refusals, notes = check(extra_args={"--trust-remote-code": True}, allow=True)
        assert refusals == []
        assert [(note.code, note.level) for note in notes] == [("ARGUMENT_LOADS_CODE", "warning")]

    def test_refuses_ours_even_with_the_permission(self):
        refusals, _ = check(extra_args={"--port": 1}, env={"CUDA_VISIBLE_DEVICES": "0"}, allow=True)
        assert [refusal.code for refusal in refusals] == ["ARGUMENT_OURS", "VARIABLE_OURS"]

    def test_warns_of_a_flag_that_no_release_has(self):
        refusals, notes = check(extra_args={"--no-such-flag": True}, allow=True)
        assert refusals == []
        assert {note.code for note in notes} == {"ARGUMENT_LOADS_CODE", "FLAG_NOT_IN_TABLE"}

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"extra_args": {"--enable-log-requests": True}}, "PROMPTS_IN_LOG"),
            ({"extra_args": {"--disable-log-stats": True}}, "NO_METRICS"),
            ({"env": {"CUDA_LAUNCH_BLOCKING": "1"}}, "SLOW_DEBUG_MODE"),
            ({"address": "10.0.0.7"}, "OPEN_TO_NETWORK"),
        ],
    )
    def test_warns_of_what_will_surprise(self, changes, code):
        refusals, notes = check(**changes)
        assert (refusals, [note.code for note in notes]) == ([], [code])

    def test_has_nothing_to_say_about_an_ordinary_spec(self):
        assert check(address="10.0.0.7", secrets={"VLLM_API_KEY": "key"}) == ([], [])
