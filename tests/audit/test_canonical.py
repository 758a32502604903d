from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest

from audit.canonical import canonical, clean_text, digest


class Colour(StrEnum):
    RED = "red"


class TestCanonical:
    def test_sorts_keys_and_leaves_no_spaces(self):
        assert canonical({"b": [1, 2], "a": None}, form=1) == b'{"a":null,"b":[1,2],"form":1}'

    def test_writes_text_as_utf8_and_not_as_escapes(self):
        assert canonical({"name": "Größe 模型"}, form=2) == '{"form":2,"name":"Größe 模型"}'.encode()

    def test_does_not_depend_on_the_order_of_the_mapping(self):
        assert canonical({"a": 1, "b": 2}, form=1) == canonical({"b": 2, "a": 1}, form=1)

    def test_writes_times_in_utc_with_microseconds(self):
        moment = datetime(2026, 12, 1, 6, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        assert canonical({"at": moment}, form=1) == b'{"at":"2026-12-01T01:00:00.000000Z","form":1}'

    def test_gives_other_bytes_for_another_form(self):
        assert canonical({"a": 1}, form=1) != canonical({"a": 1}, form=2)

    def test_tells_true_from_one_and_text_from_number(self):
        written = {canonical({"a": value}, form=1) for value in (True, 1, "1", None, "true")}
        assert len(written) == 5

    def test_accepts_a_form_that_is_already_there(self):
        assert canonical({"form": 1, "a": 1}, form=1) == canonical({"a": 1}, form=1)

    def test_writes_an_enum_of_text_as_its_text(self):
        assert canonical({"a": Colour.RED}, form=1) == b'{"a":"red","form":1}'

    @pytest.mark.parametrize(
        "value",
        [1.0, float("nan"), b"x", bytearray(b"x"), {1, 2}, object(), 1j],
        ids=lambda value: type(value).__name__,
    )
    def test_refuses_what_has_no_canonical_form(self, value):
        with pytest.raises(TypeError, match=r"\$\.deep\[0\]"):
            canonical({"deep": [value]}, form=1)

    def test_refuses_keys_that_are_not_text(self):
        with pytest.raises(TypeError, match="not text"):
            canonical({"a": {1: "x"}}, form=1)

    def test_refuses_anything_but_a_mapping(self):
        with pytest.raises(TypeError, match="mapping"):
            canonical(["a"], form=1)

    def test_refuses_a_time_without_a_zone(self):
        with pytest.raises(ValueError, match="without a zone"):
            canonical({"at": datetime(2026, 12, 1)}, form=1)  # noqa: DTZ001

    def test_refuses_a_lone_surrogate(self):
        with pytest.raises(ValueError, match="clean_text"):
            canonical({"a": "\ud800"}, form=1)

    def test_refuses_a_form_that_says_something_else(self):
        with pytest.raises(ValueError, match="form"):
            canonical({"form": 2}, form=1)


class TestDigest:
    def test_stays_what_it_was(self):
        value = {
            "name": "qwen3 模型",
            "at": datetime(2026, 12, 1, 1, 2, 3, 4, tzinfo=UTC),
            "list": [1, True, None, "x", {"z": 0, "a": -1}],
            "big": 2**63,
            "nul": "\x00",
        }
        assert canonical(value, form=1) == (
            b'{"at":"2026-12-01T01:02:03.000004Z","big":9223372036854775808,"form":1,'
            b'"list":[1,true,null,"x",{"a":-1,"z":0}],'
            b'"name":"qwen3 \xe6\xa8\xa1\xe5\x9e\x8b","nul":"\\u0000"}'
        )
        assert digest(canonical(value, form=1)) == "cbd3496ec05d97d7d17e806a12dc6e10e70929e3ae1b2ec1d859f84369a51cee"

    def test_of_nothing_is_that_of_sha256(self):
        assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class TestCleanText:
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("plain", "plain"),
            ("a\x00b", "a\ufffdb"),
            ("a\ud83db", "a\ufffdb"),
            ("line\r\nnext\ttab", "line\r\nnext\ttab"),
            ("😀", "😀"),
        ],
    )
    def test_replaces_only_what_cannot_be_stored(self, text, clean):
        assert clean_text(text) == clean

    def test_makes_text_that_canonical_accepts(self):
        canonical({"a": clean_text("\udcff\x00")}, form=1)
