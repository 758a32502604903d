import pytest

from deployments.planning import states
from deployments.planning.states import LaunchState, RunState, is_allowed_launch_move, is_allowed_run_move


class TestLaunchStates:
    def test_have_moves_and_a_tone_each(self):
        assert set(states.LAUNCH_MOVES) == set(states.LAUNCH_TONE) == set(LaunchState)

    def test_can_all_be_reached_from_planned(self):
        assert _reach(states.LAUNCH_MOVES, LaunchState.PLANNED) == set(LaunchState)

    @pytest.mark.parametrize("state", LaunchState)
    def test_can_all_end_stopped(self, state):
        assert LaunchState.STOPPED in _reach(states.LAUNCH_MOVES, state)

    @pytest.mark.parametrize("state", LaunchState)
    def test_never_move_to_themselves(self, state):
        assert not is_allowed_launch_move(before=state, after=state)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("stopped", "ready"),
            ("planned", "ready"),
            ("failed", "ready"),
            ("orphaned", "ready"),
            ("stopping", "ready"),
            ("launching", "ready"),
        ],
    )
    def test_refuse_shortcuts_to_ready(self, before, after):
        assert not is_allowed_launch_move(before=LaunchState(before), after=LaunchState(after))

    def test_are_either_active_or_terminal(self):
        assert set(LaunchState) == states.LAUNCH_ACTIVE | states.LAUNCH_TERMINAL
        assert not states.LAUNCH_ACTIVE & states.LAUNCH_TERMINAL

    def test_show_green_only_when_ready(self):
        assert [state for state in LaunchState if states.LAUNCH_TONE[state] == "good"] == [LaunchState.READY]


class TestRunStates:
    def test_have_moves_and_a_tone_each(self):
        assert set(states.RUN_MOVES) == set(states.RUN_TONE) == set(RunState)

    def test_can_all_be_reached_from_queued(self):
        assert _reach(states.RUN_MOVES, RunState.QUEUED) == set(RunState)

    def test_end_for_good(self):
        for state in RunState:
            assert (not states.RUN_MOVES[state]) == (state in states.RUN_TERMINAL)

    def test_can_be_taken_up_again_after_a_lost_worker(self):
        assert is_allowed_run_move(before=RunState.RUNNING, after=RunState.QUEUED)
        assert not is_allowed_run_move(before=RunState.FAILED, after=RunState.RUNNING)


def _reach(moves, start):
    found, todo = {start}, [start]
    while todo:
        for state in moves[todo.pop()] - found:
            found.add(state)
            todo.append(state)
    return found
