"""Starts of one host slow each other down by what was recorded, and a start alone is not slowed."""

from __future__ import annotations

import asyncio

import pytest

from simulator.vllm.pace import Crowd, Pace, find_factor
from tests.simulator.virtual_time import VirtualLoop

THREE_ON_16 = Crowd(instances=3, cores=16)


def lived(*begins: float, seconds: float = 10.0, growth: float = 2.0, cores: int = 16) -> list[float]:
    """How long each of the starts took that began at these moments."""
    loop = VirtualLoop()
    pace = Pace(cores=cores)

    async def start(begin: float) -> float:
        await asyncio.sleep(begin)
        await pace.pass_time(seconds, growth=growth, recorded=THREE_ON_16)
        return loop.time() - begin

    async def start_all() -> list[float]:
        return await asyncio.gather(*(start(begin) for begin in begins))

    try:
        return loop.run_until_complete(start_all())
    finally:
        loop.close()


class TestFactor:
    @pytest.mark.parametrize(
        ("starting", "cores", "factor"),
        [(0, 16, 1.0), (1, 1, 1.0), (3, 16, 1.5), (2, 16, 1.25), (5, 16, 2.0), (3, 32, 1.25), (24, 128, 1.71875)],
    )
    def test_is_the_recorded_growth_by_others_and_cores(self, starting, cores, factor):
        assert find_factor(growth=1.5, starting=starting, cores=cores, recorded=THREE_ON_16) == factor


class TestPace:
    def test_does_not_slow_a_start_alone(self):
        assert lived(0.0) == [pytest.approx(10.0)]

    def test_slows_three_at_once_by_the_growth(self):
        assert lived(0.0, 0.0, 0.0) == [pytest.approx(20.0)] * 3

    def test_counts_only_the_time_that_is_shared(self):
        """Alone for 4 s, then half as fast beside two others; these are two at the end, at two thirds."""
        assert lived(0.0, 4.0, 4.0) == pytest.approx([4.0 + 6.0 * 2.0, 12.0 + 4.0 * 1.5, 12.0 + 4.0 * 1.5])

    def test_forgets_a_start_that_was_broken_off(self):
        loop = VirtualLoop()
        pace = Pace(cores=16)

        async def break_off() -> float:
            other = asyncio.create_task(pace.pass_time(100.0, growth=2.0, recorded=THREE_ON_16))
            loop.call_later(6.0, other.cancel)
            await pace.pass_time(10.0, growth=2.0, recorded=THREE_ON_16)
            return loop.time()

        try:
            assert loop.run_until_complete(break_off()) == pytest.approx(6.0 + 6.0)
        finally:
            loop.close()
        assert pace.starting == 0

    def test_leaves_a_phase_alone_that_did_not_grow(self):
        assert lived(0.0, 0.0, 0.0, growth=1.0) == [pytest.approx(10.0)] * 3

    def test_shares_more_cores_with_less_loss(self):
        assert lived(0.0, 0.0, 0.0, cores=64) == [pytest.approx(12.5)] * 3
