import pytest

from deployments.planning.phases import (
    PHASE_LABEL,
    PHASE_ORDER,
    PHASE_PERCENT,
    Phase,
    Progress,
    advance,
    track,
)
from tests.planning.samples_reader import read_sample

# sample: KV tokens, KV GiB, model loading GiB, init engine seconds, context
SERVED = {
    "h200/start-cold.log": (377_040, 40.27, 1.12, 125.49, 2048),
    "h200/start-u10.log": (116_080, 12.4, 1.12, 6.93, 2048),
    "h200/start-u50len8k.log": (638_816, 68.23, 1.12, 37.87, 8192),
    "h200/start-fp8kv.log": (753_504, 40.24, 1.15, 52.96, 2048),
    "h200/start-eager.log": (377_856, 40.36, 1.12, 3.01, 2048),
    "h200/at-once-9089.log": (342_864, 36.62, 1.12, 16.15, 2048),
    "h200/at-once-9090.log": (9_312, 0.99, 1.12, 13.14, 2048),
    "h200/at-once-9091.log": (10_672, 1.14, 1.12, 14.21, 2048),
    "cpu/slim.log": (131_072, 0.06, None, 0.03, 512),
    "cpu/startup.log": (2_097_152, 1.0, None, 0.35, 512),
}
MARKERS = [
    ("(APIServer pid=1) INFO 12-01 01:12:00 [a.py:1] vLLM API server version 0.10.2", Phase.PROCESS),
    ("INFO 12-01 01:12:00 [a.py:1] vLLM server version 0.25.1, serving model /m", Phase.PROCESS),
    ("INFO 12-01 01:12:00 [a.py:1] Initializing a V1 LLM engine (v0.9.2) with config: x", Phase.ENGINE),
    ("INFO 12-01 01:12:00 [a.py:1] vLLM is using nccl==2.27.3", Phase.DISTRIBUTED),
    ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01]", Phase.LOADING),
    ("INFO 12-01 01:12:00 [a.py:1] Model loading took 14.2500 GiB and 3.123456 seconds", Phase.LOADED),
    ("INFO 12-01 01:12:00 [a.py:1] Model loading took 14.25 GiB memory and 3.123456 seconds", Phase.LOADED),
    ("INFO 12-01 01:12:00 [a.py:1] torch.compile takes 27.1 s in total", Phase.COMPILING),
    ("INFO 12-01 01:12:00 [a.py:1] Available KV cache memory: 12.40 GiB", Phase.PROFILED),
    ("INFO 12-01 01:12:00 [a.py:1] GPU KV cache size: 116,080 tokens", Phase.KV_CACHE),
    (
        (
            "INFO 12-01 01:12:00 [a.py:1] CPU KV cache size: 1,024 tokens, Maximum concurrency for 512 tokens"
            " per request: 2.00x"
        ),
        Phase.KV_CACHE,
    ),
    ("Capturing CUDA graphs (decode, FULL):  57%|xx | 4/7", Phase.GRAPHS),
    (
        "INFO 12-01 01:12:00 [a.py:1] init engine (profile, create kv cache, warmup model) took 6.93 seconds",
        Phase.ENGINE_READY,
    ),
    ("INFO 12-01 01:12:00 [a.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000", Phase.HTTP),
    ("INFO:     Application startup complete.", Phase.LISTENING),
]


class TestTrack:
    @pytest.mark.parametrize("name", SERVED)
    def test_reads_the_figures_of_recorded_starts(self, name):
        progress = track(read_sample(name))
        assert (
            progress.kv_tokens,
            progress.kv_available_gib,
            progress.model_loading_gib,
            progress.init_engine_s,
            progress.max_model_len,
        ) == SERVED[name]

    @pytest.mark.parametrize("name", [name for name in SERVED if name.startswith("h200")])
    def test_ends_at_listening_and_knows_the_line(self, name):
        lines = read_sample(name)
        progress = track(lines)
        assert (progress.phase, progress.percent, progress.listening) == (Phase.LISTENING, 100, True)
        assert "Application startup complete." in lines[progress.ready_line - 1]

    def test_goes_through_the_phases_of_a_cold_start_in_order(self):
        seen, state = [], Progress()
        for line in read_sample("h200/start-cold.log"):
            state = advance(state, line)
            if not seen or seen[-1] is not state.phase:
                seen.append(state.phase)
        assert seen == sorted(seen, key=PHASE_ORDER.index)
        assert set(PHASE_ORDER) - set(seen) == {Phase.ENDING}

    def test_knows_that_a_server_which_shut_down_no_longer_listens(self):
        progress = track(read_sample("cpu/slim.log"))
        assert (progress.phase, progress.listening) == (Phase.ENDING, False)
        assert progress.ready_line is not None

    @pytest.mark.parametrize(
        ("name", "phase"),
        [
            ("failed/bad_flag.log", Phase.WAITING),
            ("failed/bad_path.log", Phase.PROCESS),
            ("failed/tp3.log", Phase.CONFIG),
            ("failed/no_weights.log", Phase.LOADING),
            ("failed/kv_too_big.log", Phase.LOADED),
        ],
    )
    def test_stays_where_a_failed_start_stopped(self, name, phase):
        progress = track(read_sample(name))
        assert (progress.phase, progress.listening) == (phase, False)


class TestAdvance:
    @pytest.mark.parametrize(("text", "phase"), MARKERS, ids=[phase for _, phase in MARKERS])
    def test_knows_the_marker_of_each_phase_in_old_and_new_words(self, text, phase):
        assert advance(Progress(), text).phase is phase

    def test_never_goes_back(self):
        state = advance(Progress(), "INFO:     Application startup complete.")
        assert advance(state, "INFO 12-01 01:12:00 [a.py:1] Starting to load model /m...").phase is Phase.LISTENING

    def test_believes_no_figures_once_requests_can_write_to_the_log(self):
        state = advance(Progress(kv_tokens=100), "INFO:     Application startup complete.")
        state = advance(state, "INFO 12-01 01:12:00 [a.py:1] prompt: 'GPU KV cache size: 5 tokens'")
        assert state.kv_tokens == 100

    def test_keeps_the_smallest_cache_of_several_workers(self):
        lines = [
            f"(Worker_TP{rank} pid=1) INFO 12-01 01:12:00 [a.py:1] Available KV cache memory: {gib} GiB"
            for rank, gib in enumerate([4.5, 3.5, 4.0])
        ]
        assert track(lines).kv_available_gib == 3.5

    def test_follows_the_shards_within_loading(self):
        half = advance(
            Progress(), "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:09<00:09,  4.6s/it]"
        )
        assert PHASE_PERCENT[Phase.LOADING] < half.percent < PHASE_PERCENT[Phase.LOADED]

    def test_reads_the_advice_for_pinned_bytes(self):
        text = (
            "INFO 12-01 01:12:00 [a.py:1] Free memory on device (139.9/140.4 GiB) on startup. Desired GPU"
            " memory utilization is"
            " (0.3, 42.12 GiB). Actual usage is 1.12 GiB for weight. Replace gpu_memory_utilization config"
            " with"
            " `--kv-cache-memory=43226484736` (40.26 GiB) to fit into requested memory. Current kv cache"
            " memory in use is 40.36 GiB."
        )
        assert advance(Progress(), text).suggested_kv_bytes == 43226484736

    def test_does_not_take_an_error_for_a_marker(self):
        assert advance(Progress(), "ERROR 12-01 01:12:00 [a.py:1] Starting to load model /m...").phase is Phase.WAITING

    def test_counts_every_line(self):
        assert track(["a", "b", ""]).lines == 3


class TestPhases:
    def test_have_a_label_and_a_share_that_grows(self):
        assert set(PHASE_LABEL) == set(PHASE_PERCENT) == set(Phase)
        shares = [PHASE_PERCENT[phase] for phase in PHASE_ORDER]
        assert shares == sorted(shares)
