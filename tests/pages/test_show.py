"""How values look: sizes, numbers of problems, ages."""

from datetime import UTC, datetime, timedelta

import pytest

from accounts.templatetags import show

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class TestSize:
    @pytest.mark.parametrize(
        ("count", "text"),
        [
            (None, "–"),  # noqa: RUF001
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (988_097_824, "942.32 MiB"),
            (150_754_820_096, "140.4 GiB"),
            (2**40, "1 TiB"),
        ],
    )
    def test_takes_the_largest_unit(self, count, text):
        assert show.size(count) == text


class TestFigures:
    @pytest.mark.parametrize(
        ("numbers", "shown"),
        [
            ({"need_bytes": 3 * 2**30}, [("need", "3.00 GiB")]),
            ({"need_bytes": 2**20}, [("need", "1 MiB")]),
            ({"free": 40 * 2**30}, [("free", "40.00 GiB")]),
            ({"port": 8000}, [("port", "8000")]),
            ({"age_s": 724}, [("age", "724 s")]),
            ({"kv_tokens": 10_672}, [("kv tokens", "10,672")]),
            ({"share": 0.5}, [("share", "0.5")]),
            ({"pids": [1, 2]}, [("pids", "1, 2")]),
            ({"by_device": {"gpu_0": 2**30}}, [("by device", "gpu 0 1.00 GiB")]),
            ({"nothing": None, "empty": []}, []),
            ({"zero": 0, "no": False}, [("zero", "0"), ("no", "no")]),
            (None, []),
        ],
    )
    def test_say_bytes_in_gib_and_leave_out_what_is_not_known(self, numbers, shown):
        assert show.figures(numbers) == shown


class TestAge:
    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (-5, "now"),
            (1, "now"),
            (39, "39 s ago"),
            (89, "89 s ago"),
            (180, "3 min ago"),
            (7200, "2 h ago"),
            (3 * 86_400, "2026-02-26"),
        ],
    )
    def test_is_told_in_words(self, seconds, words):
        assert str(show.age({"now": NOW}, NOW - timedelta(seconds=seconds))).endswith(f">{words}</time>")

    def test_of_what_never_happened_is_never(self):
        assert "never" in show.age({"now": NOW}, None)


class TestKnown:
    @pytest.mark.parametrize(
        ("value", "text"),
        [(None, "–"), ("", "–"), (0, "0"), (False, "no"), (True, "yes")],  # noqa: RUF001
    )
    def test_tells_nothing_from_no(self, value, text):
        assert show.known(value) == text
