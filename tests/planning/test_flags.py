import json
from pathlib import Path

import pytest

from deployments.planning.data import make_vllm_flags
from deployments.planning.flags import (
    ALIASES,
    Presence,
    check_flag,
    flag_history,
    known_flags,
    normalise_flag,
)
from hosts.facts.versions import parse_version

DATA = Path(make_vllm_flags.__file__).parent
CASES = [
    ("--kv-cache-memory-bytes", "0.9.2", Presence.ABSENT),
    ("--kv-cache-memory-bytes", "0.10.0", Presence.UNSURE),
    ("--kv-cache-memory-bytes", "0.10.2", Presence.PRESENT),
    ("--kv-cache-memory-bytes", "0.25.1", Presence.PRESENT),
    ("--kv-cache-memory-bytes", "0.32.0+cpu", Presence.PRESENT),
    ("--disable-log-requests", "0.16.0", Presence.PRESENT),
    ("--disable-log-requests", "0.16.5", Presence.UNSURE),
    ("--disable-log-requests", "0.17.1", Presence.ABSENT),
    ("--worker-use-ray", "0.32.0", Presence.ABSENT),
    ("--host", "0.30.0", Presence.PRESENT),
    ("--api-key", "0.32.0", Presence.PRESENT),
    ("--enforce-eager", "0.40.0", Presence.PRESENT),
    ("--worker-use-ray", "0.40.0", Presence.UNSURE),
    ("--enforce-eager", "0.5.0", Presence.UNSURE),
    ("--no-enable-prefix-caching", "0.25.1", Presence.PRESENT),
    ("--compilation-config.mode", "0.25.1", Presence.PRESENT),
    ("--no-such-flag", "0.25.1", Presence.UNKNOWN_FLAG),
]


class TestCheckFlag:
    @pytest.mark.parametrize(("flag", "version", "wanted"), CASES)
    def test_answers_by_version(self, flag, version, wanted):
        assert check_flag(flag=flag, version=parse_version(version)) is wanted

    def test_knows_where_a_flag_lived(self):
        assert flag_history("--worker-use-ray").present_in == ("0.6.6.post1",)
        assert flag_history("--no-such-flag").present_in == ()


class TestNormaliseFlag:
    @pytest.mark.parametrize(
        ("text", "flag"),
        [
            ("max_num_seqs", "--max-num-seqs"),
            ("--max_num_seqs", "--max-num-seqs"),
            ("-tp", "--tensor-parallel-size"),
            ("--compilation-config.cudagraph_mode", "--compilation-config.cudagraph_mode"),
            ("-O.mode", "--compilation-config.mode"),
            (" --seed ", "--seed"),
        ],
    )
    def test_gives_the_long_name(self, text, flag):
        assert normalise_flag(text) == flag

    @pytest.mark.parametrize("text", ["", "--", "--a b", "--a=1", "--é", "x\ny", "9", "--" + "a" * 200, "---x", "$(x)"])
    def test_refuses_what_is_no_name(self, text):
        assert normalise_flag(text) is None


class TestTable:
    def test_is_what_the_script_makes_of_the_text(self):
        text = (DATA / "vllm-flags.txt").read_text("utf-8")
        assert json.loads((DATA / "vllm_flags.json").read_text("utf-8")) == make_vllm_flags.make_table(text)

    def test_has_the_long_name_of_every_alias(self):
        assert set(ALIASES.values()) <= known_flags()
