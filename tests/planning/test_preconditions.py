"""What a plan presupposes, right before each step."""

import pytest

from deployments.planning.preconditions import Seen, find_broken

GIB = 1024**3
FREE = {"code": "free_bytes", "subject": "GPU-1", "wanted": 20 * GIB, "launch_id": "a"}
VERSION = {"code": "vllm_version", "subject": "/opt/vllm/bin/vllm", "wanted": "0.25.1", "launch_id": None}
AGE = {"code": "facts_age_s", "subject": "gpu-a", "wanted": 3600, "launch_id": None}
PORT = {"code": "port_free", "subject": "127.0.0.1", "wanted": 8000, "launch_id": "a"}
ALL = [PORT, FREE, VERSION, AGE]


def seen(**changes) -> Seen:
    values = {"free": {"GPU-1": 20 * GIB}, "versions": {"/opt/vllm/bin/vllm": "0.25.1"}, "facts_age_s": 3600}
    return Seen(**{**values, **changes})


class TestFindBroken:
    def test_finds_nothing_when_all_hold_to_the_byte(self):
        assert find_broken(ALL, launch_id="a", seen=seen()) is None

    @pytest.mark.parametrize(
        ("changes", "code", "found"),
        [
            ({"free": {"GPU-1": 20 * GIB - 1}}, "FREE_BYTES", "20.00 GiB"),
            ({"free": {"GPU-1": None}}, "FREE_BYTES", "an unknown amount"),
            ({"free": {}}, "FREE_BYTES", "an unknown amount"),
            ({"versions": {"/opt/vllm/bin/vllm": "0.25.2"}}, "VLLM_VERSION", "0.25.2"),
            ({"versions": {}}, "VLLM_VERSION", "none"),
            ({"facts_age_s": 3601}, "FACTS_TOO_OLD", "3601 s"),
        ],
    )
    def test_names_what_was_wanted_and_found(self, changes, code, found):
        broken = find_broken(ALL, launch_id="a", seen=seen(**changes))
        assert (broken.code, broken.found) == (code, found)
        assert broken.next_step.endswith(".")

    def test_leaves_another_launch_alone(self):
        assert find_broken([FREE], launch_id="b", seen=seen(free={})) is None
