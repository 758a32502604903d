"""/metrics of an instance: vLLM's series that move, with their real names, labels and buckets.

Names, labels and buckets recorded from vLLM 0.25.1 (H200) and 0.32.0 (CPU build).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.vllm.versions import is_at_least

if TYPE_CHECKING:
    from simulator.vllm.arguments import ServeArguments

LATENCY = tuple(
    map(
        float,
        [
            "0.3",
            "0.5",
            "0.8",
            "1",
            "1.5",
            "2",
            "2.5",
            "5",
            "10",
            "15",
            "20",
            "30",
            "40",
            "50",
            "60",
            "120",
            "240",
            "480",
            "960",
            "1920",
            "7680",
        ],
    )
)
FIRST_TOKEN = tuple(
    map(
        float,
        [
            "0.001",
            "0.005",
            "0.01",
            "0.02",
            "0.04",
            "0.06",
            "0.08",
            "0.1",
            "0.25",
            "0.5",
            "0.75",
            "1",
            "2.5",
            "5",
            "7.5",
            "10",
            "20",
            "40",
            "80",
            "160",
            "640",
            "2560",
        ],
    )
)
BETWEEN = tuple(
    map(
        float,
        [
            "0.01",
            "0.025",
            "0.05",
            "0.075",
            "0.1",
            "0.15",
            "0.2",
            "0.3",
            "0.4",
            "0.5",
            "0.75",
            "1",
            "2.5",
            "5",
            "7.5",
            "10",
            "20",
            "40",
            "80",
        ],
    )
)
TOKENS = tuple(map(float, ["1", "2", "5", "10", "20", "50", "100", "200", "500", "1000", "2000", "5000"]))
STEPS = tuple(map(float, ["1", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"]))
REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass
class Histogram:
    buckets: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    count: int = 0
    total: float = 0.0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * len(self.buckets)
        for index, bound in enumerate(self.buckets):
            if value <= bound:
                self.counts[index] += 1
        self.count += 1
        self.total += value


class Metrics:
    """Counters of one engine. Written by the event loop only."""

    def __init__(self) -> None:
        self.began = time.time()
        self.running = 0
        self.waiting = 0
        self.cached_tokens = 0  # tokens that live in the KV cache now
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(REASONS, 0)
        self.http: dict[tuple[str, str, str], int] = {}
        self.cache_labels: dict[str, str] = {}
        self.cache_tokens = 0
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN),
            "inter_token_latency_seconds": Histogram(BETWEEN),
            "request_time_per_output_token_seconds": Histogram(BETWEEN),
            "e2e_request_latency_seconds": Histogram(LATENCY),
            "request_queue_time_seconds": Histogram(LATENCY),
            "request_inference_time_seconds": Histogram(LATENCY),
            "request_prefill_time_seconds": Histogram(LATENCY),
            "request_decode_time_seconds": Histogram(LATENCY),
            "request_prompt_tokens": Histogram(TOKENS),
            "request_generation_tokens": Histogram(TOKENS),
            "iteration_tokens_total": Histogram(STEPS),
        }

    def set_cache(self, *, blocks: int, arguments: ServeArguments, max_model_len: int) -> None:
        self.cache_tokens = blocks * 16
        self.cache_labels = {
            "block_size": "16",
            "cache_dtype": arguments.kv_cache_dtype,
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": str(arguments.utilization),
            "kv_cache_max_concurrency": str(self.cache_tokens / max_model_len),
            "kv_cache_memory_bytes": str(arguments.kv_cache_memory),
            "kv_cache_size_tokens": str(self.cache_tokens),
            "num_gpu_blocks": str(blocks),
            "num_gpu_blocks_override": "None",
        }

    def observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)

    def count_http(self, *, handler: str, method: str, status: int) -> None:
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1

    def render(self, *, model: str, version: str) -> str:
        """Give the whole page in Prometheus' text form."""
        labels = f'engine="0",model_name="{model}"'
        usage = self.cached_tokens / self.cache_tokens if self.cache_tokens else 0.0
        lines: list[str] = []

        def gauge(name: str, text: str, value: float, extra: str = "") -> None:
            lines.extend((f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} gauge"))
            lines.append(f"vllm:{name}{{{labels}{extra}}} {float(value)}")

        def counter(name: str, text: str, value: float) -> None:
            lines.extend((f"# HELP vllm:{name}_total {text}", f"# TYPE vllm:{name}_total counter"))
            lines.append(f"vllm:{name}_total{{{labels}}} {float(value)}")
            lines.extend((f"# TYPE vllm:{name}_created gauge", f"vllm:{name}_created{{{labels}}} {self.began}"))

        gauge("num_requests_running", "Number of requests in model execution batches.", self.running)
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", self.waiting)
        gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage)
        counter(
            "prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            self.prompt_tokens,
        )
        counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", 0)
        counter("num_preemptions", "Cumulative number of preemption from the engine.", 0)
        counter("prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens)
        counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", 0)
        counter("generation_tokens", "Number of generation tokens processed.", self.generation_tokens)
        if is_at_least(version, "0.32"):
            counter("admission_rejections", "Requests refused at admission.", 0)
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {float(count)}'
            for reason, count in self.finished.items()
        ]
        for name, histogram in self.histograms.items():
            lines += self._render_histogram(f"vllm:{name}", histogram, model)
        lines.append("# TYPE vllm:cache_config_info gauge")
        inner = ",".join(f'{key}="{value}"' for key, value in sorted(self.cache_labels.items()))
        lines.append(f"vllm:cache_config_info{{{inner}}} 1.0")
        lines.append("# TYPE http_requests_total counter")
        lines += [
            f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {float(count)}'
            for (handler, method, status), count in self.http.items()
        ]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.began}"]
        return "\n".join(lines) + "\n"

    def _render_histogram(self, name: str, histogram: Histogram, model: str) -> list[str]:
        tail = f'model_name="{model}"'
        counts = histogram.counts or [0] * len(histogram.buckets)
        lines = [f"# TYPE {name} histogram"]
        lines += [
            f'{name}_bucket{{engine="0",le="{bound}",{tail}}} {float(count)}'
            for bound, count in zip(histogram.buckets, counts, strict=True)
        ]
        lines.append(f'{name}_bucket{{engine="0",le="+Inf",{tail}}} {float(histogram.count)}')
        lines.append(f'{name}_count{{engine="0",{tail}}} {float(histogram.count)}')
        lines.append(f'{name}_sum{{engine="0",{tail}}} {histogram.total}')
        return lines
