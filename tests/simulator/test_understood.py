"""What the stand-in writes is what the product's own readers of vLLM logs understand."""

from __future__ import annotations

import signal

import pytest

from deployments.planning.failure import explain_failure
from deployments.planning.phases import Phase, track

CAUSES = {
    "FLAG_UNKNOWN": ("--no-such-flag",),
    "CONTEXT_TOO_LONG": ("--max-model-len", "99999"),
    "TP_DOES_NOT_DIVIDE_HEADS": ("-tp", "3"),
    "TOO_FEW_DEVICES": ("-tp", "4"),
    "NO_KV_CACHE_MEMORY": ("--gpu-memory-utilization", "0.05"),
    "CUDA_OUT_OF_MEMORY": ("--kv-cache-memory-bytes", "40G", "--gpu-memory-utilization", "0.05"),
}


class TestProgress:
    @pytest.mark.parametrize(("host", "installation"), [("gpu-a", 0), ("gpu-a", 1), ("cpu-box", 0)])
    def test_follows_a_start_to_its_end(self, launcher, host, installation):
        found = launcher.fleet[host]
        vllm = str(found.layout.executable(found.spec.installations[installation]))
        started = launcher.start(host, "--gpu-memory-utilization", "0.5", vllm=vllm).wait_ready()
        progress = track(started.log.replace("\r", "\n").splitlines())
        assert (progress.phase, progress.listening) == (Phase.LISTENING, True)
        tokens = started.log.split("KV cache size: ")[1].split(" ")[0]
        assert progress.kv_tokens == int(tokens.replace(",", ""))


class TestCause:
    @pytest.mark.parametrize("code", CAUSES)
    def test_names_the_cause_of_a_failed_start(self, launcher, code):
        started = launcher.start("gpu-a", *CAUSES[code])
        status = started.wait_exit()
        cause = explain_failure(
            lines=started.log.splitlines(), exit_code=status.exit_code, exit_signal=status.exit_signal
        )
        assert cause.code == code

    def test_names_a_dead_worker(self, launcher):
        started = launcher.start("gpu-a", "-tp", "2").wait_ready()
        started.send("Worker_TP1", signal.SIGKILL)
        status = started.wait_exit()
        cause = explain_failure(
            lines=started.log.splitlines(), exit_code=status.exit_code, exit_signal=status.exit_signal
        )
        assert cause.code == "WORKER_DIED"
