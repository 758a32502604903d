import re

import pytest

from deployments.planning.failure import explain_failure
from deployments.planning.failure_rules import RULES
from tests.planning.samples_reader import SAMPLES, read_sample

# sample: code, what the evidence line must contain
RECORDED = {
    "bad_arch.log": ("ARCHITECTURE_UNSUPPORTED", "['NopeForCausalLM'] are not supported"),
    "bad_flag.log": ("FLAG_UNKNOWN", "--no-such-flag"),
    "bad_path.log": ("MODEL_PATH_INVALID", "/models/nope"),
    "bad_value.log": ("ARGUMENT_VALUE_INVALID", "'abc'"),
    "dtype_bad.log": ("ARGUMENT_VALUE_INVALID", "'float17'"),
    "hub_name.log": ("MODEL_NOT_ON_HOST", "LocalEntryNotFoundError:"),
    "kv_too_big.log": ("KV_CACHE_TOO_BIG", "10.43/12.34 GiB"),
    "len_too_big.log": ("CONTEXT_TOO_LONG", "(99999)"),
    "no_weights.log": ("WEIGHTS_MISSING", "/models/qwen3-noweights"),
    "tp3.log": ("TP_DOES_NOT_DIVIDE_HEADS", "(4) must be divisible by tensor parallel size (3)"),
    "truncated_weights.log": ("WEIGHTS_DAMAGED", "incomplete metadata"),
    "killworker.log": ("WORKER_DIED", "VllmWorker-0 died unexpectedly"),
    "sameport.log": ("PORT_TAKEN", "[Errno 98]"),
    "h200-illegal-access.log": ("CUDA_ERROR", "an illegal memory access was encountered"),
    "h200-kv-too-small.log": ("KV_CACHE_TOO_SMALL", "estimated maximum model length is 1232"),
}
# Texts of vLLM's sources that no recorded log holds.
WRITTEN = [
    (
        "MEMORY_NOT_FREE",
        (
            "ValueError: Free memory on device cuda:0 (20.1/140.4 GiB) on startup is less than desired GPU"
            " memory utilization (0.3, 42.12 GiB). Decrease GPU memory utilization"
        ),
    ),
    (
        "MEMORY_NOT_FREE",
        (
            "ValueError: Free memory on device (20.1/140.4 GiB) on startup is less than desired GPU memory"
            " utilization (0.3, 42.12 GiB)."
        ),
    ),
    (
        "NO_KV_CACHE_MEMORY",
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
            " when initializing the engine."
        ),
    ),
    (
        "MEMORY_CHANGED_DURING_START",
        "AssertionError: Error in memory profiling. Initial free memory 20 GiB, current free memory 30 GiB.",
    ),
    ("CUDA_OUT_OF_MEMORY", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    (
        "RENDEZVOUS_PORT_TAKEN",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network"
            " address. port: 29500, code: -98, name: EADDRINUSE"
        ),
    ),
    (
        "NUMA_NODES_TOO_FEW",
        "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers",
    ),
    (
        "TOO_FEW_DEVICES",
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
    ),
    ("DISK_FULL", "OSError: [Errno 28] No space left on device: '/home/llm/.cache/vllm/x'"),
    (
        "NCCL_ERROR",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error",
    ),
    ("DEVICE_TYPE_UNKNOWN", "RuntimeError: Failed to infer device type, please set the environment variable"),
    ("STEP_TIMED_OUT", "TimeoutError: RPC call to execute_model timed out."),
    (
        "ENGINE_DIED",
        (
            "ERROR 12-01 01:12:00 [core_client.py:1] Engine core proc EngineCore_DP0 died unexpectedly,"
            " shutting down client."
        ),
    ),
    (
        "MODEL_NEEDS_OWN_CODE",
        ("ValueError: The repository /m contains custom code which must be executed to correctly load the model."),
    ),
    ("PACKAGE_MISSING", "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"),
    ("PERMISSION_DENIED", "PermissionError: [Errno 13] Permission denied: '/models/secret'"),
]


def explain(lines, *, exit_code=1, exit_signal=None):
    return explain_failure(lines=lines, exit_code=exit_code, exit_signal=exit_signal)


class TestRecordedFailures:
    @pytest.mark.parametrize("name", RECORDED)
    def test_are_named_by_their_first_root_error(self, name):
        code, evidence = RECORDED[name]
        lines = read_sample(f"failed/{name}")
        cause = explain(lines)
        assert cause.code == code
        assert evidence in cause.evidence_line
        assert cause.evidence_line[:40].strip() in lines[cause.line_number - 1]
        assert "{" not in cause.sentence + cause.next_step
        assert "?" not in cause.sentence

    def test_are_all_covered(self):
        assert {path.name for path in (SAMPLES / "failed").glob("*.log")} == set(RECORDED)

    def test_of_pipeline_parallel_on_the_cpu_build_names_the_check_and_not_its_consequence(self):
        cause = explain(read_sample("cpu/pp2.log"), exit_code=0)
        assert (cause.code, cause.evidence_line) == ("ENGINE_ASSERTION", "AssertionError")

    def test_puts_the_numbers_into_the_sentence(self):
        cause = explain(read_sample("failed/len_too_big.log"))
        assert cause.sentence == "The context of 99999 tokens is longer than the model's own limit of 2048."

    @pytest.mark.parametrize(
        "name", ["cpu/slim.log", "cpu/startup.log", "h200/start-cold.log", "h200/at-once-9090.log"]
    )
    def test_of_instances_that_served_well_are_not_invented(self, name):
        assert explain(read_sample(name), exit_code=0).code == "ENDED_WITHOUT_ERROR"


class TestWrittenFailures:
    @pytest.mark.parametrize(("code", "text"), WRITTEN, ids=[code for code, _ in WRITTEN])
    def test_are_named(self, code, text):
        tail = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        assert explain(["Traceback (most recent call last):", text, tail]).code == code


# Every wording of a rule whose sentence quotes something.
WORDINGS = [
    ("CUDA error: device-side assert triggered", "device-side assert triggered"),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "an illegal memory access"),
    ("torch.AcceleratorError: out of resources", "out of resources"),
    ("Failed: CUDA failure: unknown", "unknown"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP", "PytorchStreamReader failed"),
    ("SafetensorError: header too large", "header too large"),
]


class TestSentences:
    @pytest.mark.parametrize(("text", "quoted"), WORDINGS)
    def test_quote_what_the_line_says_however_it_is_worded(self, text, quoted):
        sentence = explain(["Traceback (most recent call last):", text]).sentence
        assert quoted in sentence
        assert "?" not in sentence


class TestExplainFailure:
    def test_takes_the_first_of_two_known_errors(self):
        lines = [
            "ValueError: No available memory for the cache blocks.",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ]
        assert explain(lines).code == "NO_KV_CACHE_MEMORY"

    def test_quotes_an_exception_it_does_not_know(self):
        lines = [
            "Traceback (most recent call last):",
            "foo.bar.StrangeError: it broke",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ]
        cause = explain(lines)
        assert (cause.code, cause.evidence_line, cause.line_number) == (
            "UNKNOWN_ERROR",
            "foo.bar.StrangeError: it broke",
            2,
        )

    def test_skips_warnings_that_quote_an_error(self):
        line = "WARNING 12-01 01:25:52 [s.py:255] Errors like `OSError: [Errno 98] address already in use`"
        assert explain([line]).code == "EXIT_CODE"

    def test_skips_source_lines_of_a_traceback(self):
        assert (
            explain(['    raise ValueError("No available memory for the cache blocks.")'], exit_code=3).code
            == "EXIT_CODE"
        )

    def test_forgets_errors_that_the_instance_survived(self):
        lines = [
            "PermissionError: [Errno 13] Permission denied: '/x'",
            "INFO:     Application startup complete.",
        ]
        assert explain(lines, exit_code=0).code == "ENDED_WITHOUT_ERROR"

    @pytest.mark.parametrize(
        ("exit_code", "exit_signal", "code"),
        [
            (None, 9, "KILLED"),
            (None, 15, "ENDED_BY_SIGNAL"),
            (0, None, "ENDED_WITHOUT_ERROR"),
            (2, None, "EXIT_CODE"),
            (None, None, "GONE"),
        ],
    )
    def test_falls_back_to_how_the_process_ended(self, exit_code, exit_signal, code):
        cause = explain([], exit_code=exit_code, exit_signal=exit_signal)
        assert (cause.code, cause.evidence_line, cause.line_number) == (code, None, None)

    def test_never_reads_host_text_as_a_template(self):
        cause = explain(["vllm: error: unrecognized arguments: {path} %s {0.__class__}"])
        assert cause.sentence == "This vLLM does not know the argument {path} %s {0.__class__}."

    def test_bounds_what_it_quotes(self):
        cause = explain(["StrangeError: " + "x" * 100_000])
        assert len(cause.sentence) < 400
        assert cause.evidence_line is None or len(cause.evidence_line) <= 600


class TestRules:
    def test_have_one_sentence_and_a_next_step(self):
        for rule in RULES:
            assert rule.sentence.endswith("."), rule.code
            assert rule.next_step.endswith("."), rule.code

    def test_name_no_group_that_the_pattern_lacks(self):
        for rule in RULES:
            holes = set(re.findall(r"\{(\w+)\}", rule.sentence + rule.next_step))
            assert holes <= set(rule.pattern.groupindex), rule.code
