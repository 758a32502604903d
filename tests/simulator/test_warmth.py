"""Which of the recorded kinds of start the next one on a host is."""

from __future__ import annotations

import pytest

from simulator.vllm.warmth import Caches, Warmth


@pytest.mark.parametrize(
    ("compiled", "came_up", "warmth"),
    [
        ((), {}, Warmth.COLD),
        (("mine",), {}, Warmth.COLD),  # compiled by one that never came up: its kernels are not all made
        (("other",), {"other": 5}, Warmth.NEW),
        (("mine",), {"other": 5}, Warmth.SECOND),
        (("mine",), {"mine": 1}, Warmth.SECOND),
        (("mine",), {"mine": 2}, Warmth.WARM),
    ],
)
def test_warmth_is_told_by_what_came_up_before(compiled, came_up, warmth):
    caches = Caches(compiled=set(compiled))
    caches.came_up.update(came_up)
    assert caches.find_warmth("mine") is warmth


def test_flags_not_read_yet_are_warm_on_a_host_that_served():
    caches = Caches()
    assert caches.find_warmth(None) is Warmth.COLD
    caches.came_up["mine"] += 1
    assert caches.find_warmth(None) is Warmth.WARM
