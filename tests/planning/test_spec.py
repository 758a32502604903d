from decimal import Decimal

import pytest

from audit.canonical import canonical, digest
from deployments.planning.sizes import format_gib, format_size, parse_size
from deployments.planning.spec import DeploymentSpec, Problems
from deployments.planning.spec_parse import FIELDS, parse_spec
from deployments.planning.spec_yaml import SPEC_FORM, spec_from_yaml, spec_to_mapping, spec_to_yaml
from tests.planning.factories import make_spec, spec_mapping

FULL = {
    "name": "qwen3-chat",
    "host": "gpu01.example.org",
    "model": "/models/qwen3/",
    "served_model_name": "Qwen/Qwen3-0.6B",
    "vllm": "/opt/vllm",
    "instances": 3,
    "tensor_parallel": 2,
    "pipeline_parallel": 1,
    "devices": [0, "GPU-4c42802a-ce50-e1e3-c7d9-71739d44943b"],
    "max_model_len": 8192,
    "max_num_seqs": 32,
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.3,
    "kv_cache_memory_bytes": "40GiB",
    "port": 9089,
    "address": "10.0.0.7",
    "task": "generate",
    "extra_args": {
        "enable_prefix_caching": True,
        "--compilation-config": {"mode": 3},
        "--disable-access-log-for-endpoints": ["/health", "/metrics"],
        "seed": 7,
    },
    "env": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4},
    "secrets": {"VLLM_API_KEY": "fleet key"},
    "notes": "first line\nsecond: line",
}

# changes, path of the problem, its code
WRONG = [
    ({"name": None}, "name", "REQUIRED"),
    ({"name": "Has Capitals"}, "name", "INVALID"),
    ({"model": "models/qwen3"}, "model", "NOT_A_PATH"),
    ({"model": "/models/a\nb"}, "model", "NOT_A_PATH"),
    ({"served_model_name": "a b"}, "served_model_name", "INVALID"),
    ({"served_model_name": "--model"}, "served_model_name", "INVALID"),
    ({"instances": 0}, "instances", "OUT_OF_RANGE"),
    ({"instances": True}, "instances", "OUT_OF_RANGE"),
    ({"instances": 1.5}, "instances", "OUT_OF_RANGE"),
    ({"tensor_parallel": "two"}, "tensor_parallel", "OUT_OF_RANGE"),
    ({"port": 80}, "port", "OUT_OF_RANGE"),
    ({"port": 65535, "instances": 2}, "port", "OUT_OF_RANGE"),
    ({"address": "localhost"}, "address", "NOT_AN_ADDRESS"),
    ({"dtype": "float17"}, "dtype", "NOT_A_CHOICE"),
    ({"task": "chat"}, "task", "NOT_A_CHOICE"),
    ({"gpu_memory_utilization": 30}, "gpu_memory_utilization", "OUT_OF_RANGE"),
    ({"gpu_memory_utilization": "nan"}, "gpu_memory_utilization", "OUT_OF_RANGE"),
    ({"gpu_memory_utilization": 0.33333}, "gpu_memory_utilization", "OUT_OF_RANGE"),
    ({"kv_cache_memory_bytes": "many"}, "kv_cache_memory_bytes", "NOT_A_SIZE"),
    ({"kv_cache_memory_bytes": 5}, "kv_cache_memory_bytes", "NOT_A_SIZE"),
    ({"devices": ["gpu0"]}, "devices[0]", "NOT_A_DEVICE"),
    ({"devices": [0, 0]}, "devices", "TWICE"),
    ({"devices": ["cpu", 0]}, "devices", "MIXED"),
    ({"extra_args": {"--x y": 1}}, "extra_args.--x y", "NOT_A_FLAG"),
    ({"extra_args": {"seed": 1, "--seed": 2}}, "extra_args.--seed", "TWICE"),
    ({"extra_args": {"--enforce-eager": False}}, "extra_args.--enforce-eager", "SWITCH_OFF"),
    ({"extra_args": {"--seed": ["--trust-remote-code"]}}, "extra_args.--seed", "NOT_A_VALUE"),
    ({"extra_args": {"--seed": "a\x00b"}}, "extra_args.--seed", "NOT_A_VALUE"),
    ({"extra_args": "--seed 1"}, "extra_args", "NOT_A_MAPPING"),
    ({"env": {"A B": "x"}}, "env.A B", "NOT_A_VARIABLE"),
    ({"env": {"NCCL_DEBUG": True}}, "env.NCCL_DEBUG", "NOT_A_VALUE"),
    ({"env": {"A": "x\ny"}}, "env.A", "NOT_A_VALUE"),
    ({"secrets": {"VLLM_API_KEY": "sk-…secret!"}}, "secrets.VLLM_API_KEY", "NOT_A_CREDENTIAL"),
    ({"secrets": {"A": "x"}, "env": {"A": "y"}}, "secrets.A", "TWICE"),
    ({"instanses": 3}, "instanses", "FIELD_UNKNOWN"),
    ({"notes": "a\x00"}, "notes", "INVALID"),
]


class TestParseSpec:
    def test_reads_every_field(self):
        spec = parse_spec(FULL)
        assert isinstance(spec, DeploymentSpec)
        assert set(FULL) == set(FIELDS)
        assert (spec.model, spec.instances, spec.workers) == ("/models/qwen3", 3, 2)
        assert spec.devices == (0, "GPU-4c42802a-ce50-e1e3-c7d9-71739d44943b")
        assert spec.gpu_memory_utilization == Decimal("0.3")
        assert spec.kv_cache_memory_bytes == 40 * 1024**3
        assert spec.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
        assert spec.extra_args == {
            "--enable-prefix-caching": True,
            "--compilation-config": '{"mode":3}',
            "--disable-access-log-for-endpoints": ("/health", "/metrics"),
            "--seed": "7",
        }

    def test_needs_only_four_fields(self):
        spec = parse_spec(spec_mapping())
        assert (spec.vllm, spec.devices, spec.port, spec.address) == ("auto", "auto", "auto", "127.0.0.1")
        assert (spec.instances, spec.dtype, spec.task, spec.max_model_len) == (1, "auto", "generate", None)

    def test_takes_empty_fields_of_a_form_as_left_out(self):
        assert parse_spec(spec_mapping(max_model_len="", devices="", port="", env=None)) == parse_spec(spec_mapping())

    def test_reads_numbers_and_lists_as_a_form_writes_them(self):
        spec = parse_spec(spec_mapping(instances="3", port="9000", devices="0, 1", gpu_memory_utilization="0.30"))
        assert (spec.instances, spec.port, spec.devices, str(spec.gpu_memory_utilization)) == (
            3,
            9000,
            (0, 1),
            "0.3",
        )

    @pytest.mark.parametrize(("changes", "path", "code"), WRONG, ids=[f"{path}-{code}" for _, path, code in WRONG])
    def test_says_what_is_wrong_and_where(self, changes, path, code):
        problems = parse_spec(spec_mapping(**changes))
        assert isinstance(problems, Problems)
        assert [(item.path, item.code) for item in problems.items] == [(path, code)]
        assert problems.items[0].message.rstrip()[-1] in ".?"

    def test_reports_all_problems_at_once(self):
        problems = parse_spec({"name": "A", "model": "x", "instances": -1, "colour": "red"})
        assert {item.path for item in problems.items} == {
            "name",
            "host",
            "model",
            "served_model_name",
            "instances",
            "colour",
        }

    def test_suggests_the_field_that_was_meant(self):
        (problem,) = parse_spec(spec_mapping(tensor_paralel=2)).items
        assert "Did you mean tensor_parallel?" in problem.message

    def test_never_repeats_a_secret_that_was_put_in_the_wrong_place(self):
        (problem,) = parse_spec(spec_mapping(secrets={"HF_TOKEN": "hf_/AbCdEf=="})).items
        assert "AbCdEf" not in problem.message

    @pytest.mark.parametrize("source", [None, [], "x", 3])
    def test_refuses_what_is_no_mapping(self, source):
        assert parse_spec(source).items[0].code == "NOT_A_MAPPING"


class TestSpecFromYaml:
    def test_reads_back_what_it_wrote(self):
        spec = parse_spec(FULL)
        assert spec_from_yaml(spec_to_yaml(spec)) == spec

    def test_writes_only_what_differs_from_the_defaults(self):
        assert spec_to_yaml(make_spec()) == (
            "name: chat\nhost: gpu01\nmodel: /models/qwen3\nserved_model_name: qwen3\n"
        )

    @pytest.mark.parametrize(
        ("text", "code", "line"),
        [
            ("name: a\nhost: b\nname: c\n", "YAML_KEY_TWICE", 3),
            ("name: a\nenv:\n  A: 1\n  A: 2\n", "YAML_KEY_TWICE", 4),
            ("name: a\n  host: b\n", "YAML_SYNTAX", 2),
            ("name: [a\nhost: b\n", "YAML_SYNTAX", 2),
            ("\tname: a\n", "YAML_SYNTAX", 1),
            ("name: &x a\nhost: *x\n", "YAML_ANCHOR", 1),
            ("name: a\nhost: !!python/object:os.system x\n", "YAML_SYNTAX", 2),
            ("", "YAML_EMPTY", None),
            ("name: a\x00b", "YAML_UNREADABLE", None),
            ("[" * 30_000, "YAML_UNREADABLE", None),
            ("a: 1\n" * 20_000, "YAML_TOO_LARGE", None),
            ("- name\n", "NOT_A_MAPPING", None),
            ("just text", "NOT_A_MAPPING", None),
            ("d: 2026-99-99", "YAML_UNREADABLE", None),
        ],
    )
    def test_says_what_is_wrong_and_in_which_line(self, text, code, line):
        problems = spec_from_yaml(text)
        assert isinstance(problems, Problems)
        assert (problems.items[0].code, problems.items[0].line) == (code, line)

    def test_reports_fields_as_parse_spec_does(self):
        problems = spec_from_yaml("name: chat\nhost: gpu01\nmodel: /m\nserved_model_name: a\nport: 2026-12-01\n")
        assert [(item.path, item.code) for item in problems.items] == [("port", "OUT_OF_RANGE")]


class TestSpecToMapping:
    def test_gives_the_same_bytes_for_the_same_spec_written_in_another_way(self):
        first = parse_spec(FULL)
        other = parse_spec(dict(reversed(FULL.items())) | {"kv_cache_memory_bytes": 40 * 1024**3, "instances": "3"})
        assert canonical(spec_to_mapping(first), form=SPEC_FORM) == canonical(spec_to_mapping(other), form=SPEC_FORM)

    def test_has_a_digest_that_stays(self):
        assert (
            digest(canonical(spec_to_mapping(make_spec()), form=SPEC_FORM))
            == "fc164a9da713203a01863ac75dfbe5ba9bed8ab95aa2e794f2e0dbab24282617"
        )

    def test_can_be_parsed_again(self):
        spec = parse_spec(FULL)
        assert parse_spec(spec_to_mapping(spec)) == spec


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("64MiB", 64 * 2**20),
            ("64M", 64 * 2**20),
            ("1.5 GiB", 3 * 2**29),
            ("40GB", 40 * 10**9),
            ("1024", 1024),
            ("0.25g", 2**28),
        ],
    )
    def test_are_read(self, text, size):
        assert parse_size(text) == size

    @pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1.GiB", "1 PiB", "9" * 15 + "TiB", "\u0663"])
    def test_are_refused(self, text):
        assert parse_size(text) is None

    @pytest.mark.parametrize("size", [1, 1024, 64 * 2**20, 40 * 2**30, 3 * 2**29, 2**40, 123456789])
    def test_are_written_so_that_they_read_the_same(self, size):
        assert parse_size(format_size(size)) == size

    def test_are_rounded_for_people(self):
        assert [format_gib(size) for size in (0, 2**30, 43_367_006_208, -(2**29), 2**40)] == [
            "0.00",
            "1.00",
            "40.39",
            "-0.50",
            "1,024.00",
        ]
