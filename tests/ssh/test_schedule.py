"""When a failed connection is tried again, and when it is not."""

from __future__ import annotations

import pickle

import pytest

from hosts.ssh import errors
from hosts.ssh.errors import AuthRefused, HostKeyChanged, SshError, TooManyConnections
from hosts.ssh.retry import call_with_retry, schedule_delays

BUSY = TooManyConnections("TOO_MANY_CONNECTIONS", address="h")


class TestDelays:
    def test_grow_up_to_the_cap(self):
        delays = list(schedule_delays(attempts=6, first=1, factor=3, cap=10, jitter=lambda: 1.0))
        assert delays == [1, 3, 9, 10, 10]

    def test_spread_between_half_and_whole_of_the_step(self):
        low = list(schedule_delays(attempts=3, first=2, jitter=lambda: 0.0))
        high = list(schedule_delays(attempts=3, first=2, jitter=lambda: 1.0))
        assert (low, high) == ([1, 2], [2, 4])

    def test_of_a_single_attempt_are_none(self):
        assert list(schedule_delays(attempts=1, jitter=lambda: 1.0)) == []


class TestCallWithRetry:
    def test_comes_back_after_a_transient_error(self):
        outcomes = [BUSY, BUSY, "connected"]
        slept: list[float] = []

        def action() -> str:
            outcome = outcomes.pop(0)
            if isinstance(outcome, SshError):
                raise outcome
            return outcome

        assert call_with_retry(action, delays=iter([1.0, 2.0, 4.0]), sleep=slept.append) == "connected"
        assert slept == [1.0, 2.0]

    def test_gives_up_when_the_delays_are_used(self):
        def action() -> None:
            raise BUSY

        with pytest.raises(TooManyConnections):
            call_with_retry(action, delays=iter([0.1]), sleep=lambda _: None)

    @pytest.mark.parametrize(
        "error",
        [
            AuthRefused("WRONG_KEY", address="h", user="u"),
            HostKeyChanged("HOST_KEY_CHANGED", address="h", pinned="a", found="b"),
        ],
    )
    def test_never_repeats_a_refused_sign_in_or_a_changed_key(self, error):
        calls: list[int] = []

        def action() -> None:
            calls.append(1)
            raise error

        with pytest.raises(type(error)):
            call_with_retry(action, delays=iter([0.1, 0.1]), sleep=lambda _: None)
        assert len(calls) == 1


class TestTree:
    def test_codes_are_unique_and_every_text_is_a_sentence(self):
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SshError)]
        codes = [code for kind in kinds for code in kind.texts]
        assert len(codes) == len(set(codes)) > 20
        for kind in kinds:
            for code, (_transient, sentence, next_step) in kind.texts.items():
                assert code in errors.__doc__
                assert sentence.rstrip("}").endswith((".", "detail")), code
                assert next_step.endswith("."), code

    def test_the_drawing_marks_exactly_the_transient_codes(self):
        for kind in SshError.__subclasses__():
            for code, (transient, _sentence, _next_step) in kind.texts.items():
                assert (f"{code} (t)" in errors.__doc__) == transient, code

    def test_survives_pickling(self):
        before = AuthRefused("WRONG_KEY", address="h", user="u")
        again = pickle.loads(pickle.dumps(before))  # noqa: S301 - our own bytes
        assert (type(again), again.code, again.message) == (AuthRefused, "WRONG_KEY", before.message)
