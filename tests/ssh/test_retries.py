"""Which failures are tried again: by the worker, by the watcher, and never without a person."""

from __future__ import annotations

import pytest

from hosts.ssh.errors import SshError
from hosts.ssh.retry import LONGEST_WAIT_S, wait_before_retry, waits_for_person

# What a run does after the error, and what the watch of the host does. `later`: by itself; `end`: the run has failed;
# `person`: nothing before somebody acts.
CASES = {
    "HOST_UNREACHABLE": ("later", "later"),
    "PORT_CLOSED": ("later", "later"),
    "PORT_SILENT": ("later", "later"),
    "NAME_UNKNOWN": ("end", "later"),
    "NAME_SERVICE_SILENT": ("later", "later"),
    "NOT_SSH": ("end", "later"),
    "NO_COMMON_ALGORITHM": ("end", "later"),
    "TOO_MANY_CONNECTIONS": ("later", "later"),
    "SIGN_INS_UNDER_WAY": ("later", "later"),
    "HOST_KEY_UNKNOWN": ("end", "person"),
    "HOST_KEY_CHANGED": ("end", "person"),
    "WRONG_KEY": ("end", "person"),
    "WRONG_PASSWORD": ("end", "person"),
    "KEY_UNREADABLE": ("end", "person"),
    "KEY_NEEDS_PASSPHRASE": ("end", "person"),
    "AUTH_METHOD_REFUSED": ("end", "person"),
    "AUTH_INCOMPLETE": ("end", "person"),
    "AUTH_TIMEOUT": ("later", "later"),
    "CHANNEL_TIMEOUT": ("later", "later"),
    "COMMAND_TIMEOUT": ("end", "later"),
    "NOTHING_RECEIVED": ("end", "later"),
    "CONNECTION_LOST": ("later", "later"),
    "CHANNELS_BUSY": ("later", "later"),
    "CHANNEL_REFUSED": ("later", "later"),
    "EXEC_REFUSED": ("end", "later"),
    "WRITE_REFUSED": ("end", "later"),
    "DISK_FULL": ("end", "later"),
}
TREE = {code: text[0] for kind in SshError.__subclasses__() for code, text in kind.texts.items()}


def wait(code: str, failures: int = 1, jitter: float = 1.0) -> float | None:
    return wait_before_retry(code, failures=failures, jitter=lambda: jitter)


class TestEveryError:
    def test_has_a_row(self):
        assert sorted(CASES) == sorted(TREE)

    @pytest.mark.parametrize("code", CASES)
    def test_is_treated_as_the_row_says(self, code):
        run = "later" if TREE[code] else "end"
        watch = "person" if wait(code) is None else "later"
        assert (run, watch) == CASES[code]

    @pytest.mark.parametrize("code", CASES)
    def test_that_waits_for_a_person_is_never_transient(self, code):
        assert not (waits_for_person(code) and TREE[code])


class TestRefusalsOfTheAgent:
    def test_of_a_changed_machine_wait_for_a_person(self):
        assert wait("MACHINE_CHANGED") is None

    @pytest.mark.parametrize("code", ["NO_PYTHON", "STATE_ROOT_NOT_OURS", "VAULT_CLOSED"])
    def test_of_other_kinds_are_tried_again(self, code):
        assert wait(code) == 1.0


class TestNoFailure:
    def test_waits_for_nobody(self):
        assert not waits_for_person(None)


class TestWaits:
    def test_double_up_to_the_cap_for_however_long(self):
        assert [wait("PORT_CLOSED", failures) for failures in (1, 2, 3, 6, 7, 5000)] == [
            1.0,
            2.0,
            4.0,
            32.0,
            LONGEST_WAIT_S,
            LONGEST_WAIT_S,
        ]

    def test_spread_over_half_of_the_step(self):
        assert (wait("PORT_CLOSED", 3, jitter=0.0), wait("PORT_CLOSED", 3, jitter=0.5)) == (2.0, 3.0)
