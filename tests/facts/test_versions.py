import pytest

from hosts.facts.versions import is_at_least, parse_version

IN_ORDER = [
    "0.6.6",
    "0.6.6.post1",
    "0.9.2",
    "0.10.0",
    "0.10.2",
    "0.11.0.dev5",
    "0.11.0rc1",
    "0.11.0rc2",
    "0.11.0",
    "0.25.1",
    "0.25.2.dev17+g1234abc",
    "0.32.0",
    "1.0",
]


class TestParseVersion:
    def test_orders_releases_candidates_and_development_builds(self):
        versions = [parse_version(text) for text in IN_ORDER]
        assert sorted(versions, key=lambda version: (version, version.text)) == versions
        assert versions[0] < versions[-1]
        assert len(set(versions)) == len(IN_ORDER)

    def test_leaves_the_local_part_out_of_comparisons(self):
        assert parse_version("0.32.0+cpu") == parse_version("0.32.0")
        assert str(parse_version("0.32.0+cpu")) == "0.32.0+cpu"

    def test_knows_a_cpu_build(self):
        assert parse_version("0.32.0+cpu").is_cpu_build
        assert not parse_version("0.32.0+cu130").is_cpu_build

    @pytest.mark.parametrize("text", ["0.11.0rc1", "0.26.0.dev1", "0.26.0.dev1+gabc"])
    def test_tells_unreleased_builds(self, text):
        assert not parse_version(text).is_final

    def test_reads_short_and_long_releases_alike(self):
        assert parse_version("1.0") == parse_version("1.0.0")
        assert parse_version("v0.9.2") == parse_version("0.9.2")

    @pytest.mark.parametrize("text", ["", "dev", "0.9.2 oops", "0.9.", "1" * 200, "0..9", "\u0663.\u0661"])
    def test_gives_none_for_what_is_no_version(self, text):
        assert parse_version(text) is None

    def test_compares_with_a_floor(self):
        assert is_at_least(parse_version("0.32.0+cpu"), "0.10.2")
        assert not is_at_least(parse_version("0.10.2rc1"), "0.10.2")

    def test_refuses_a_floor_that_is_no_version(self):
        with pytest.raises(ValueError, match="not a version"):
            is_at_least(parse_version("0.9.2"), "new")
