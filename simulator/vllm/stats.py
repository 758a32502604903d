"""The periodic line of vLLM's log: throughput and load, every ten seconds while there is something to say.

Text recorded from vLLM 0.32.0; silent again after an interval without tokens, as INFO is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.vllm.instance import Instance

INTERVAL_S = 10.0


class StatsLine:
    """Wakes with the first request and sleeps again when two intervals were quiet."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._task: asyncio.Task[None] | None = None
        self._said = (0, 0)

    def wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._instance.run_task(self._run)

    async def _run(self) -> None:
        quiet = 0
        while quiet < 2 and not self._instance.tree.api.gone:
            await asyncio.sleep(INTERVAL_S)
            quiet = 0 if self._say() else quiet + 1

    def _say(self) -> bool:
        """Write one line; whether tokens moved since the last."""
        metrics = self._instance.metrics
        now = (metrics.prompt_tokens, metrics.generation_tokens)
        prompt, generation = ((new - old) / INTERVAL_S for new, old in zip(now, self._said, strict=True))
        self._said = now
        usage = 100 * metrics.cached_tokens / metrics.cache_tokens if metrics.cache_tokens else 0.0
        device = "GPU" if self._instance.gpus else "CPU"
        self._instance.log.write(
            f"(APIServer) INFO [loggers.py:335] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generation:.1f} tokens/s, Running: {metrics.running} reqs, "
            f"Waiting: {metrics.waiting} reqs, {device} KV cache usage: {usage:.1f}%, "
            "Prefix cache hit rate: 0.0%\n"
        )
        return prompt + generation > 0
