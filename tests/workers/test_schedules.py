"""Schedules of pipelines: in which order, how long, and how much is held."""

from collections.abc import Callable

import pytest

from lms.workers.schedules import SCHEDULES, Action, Schedule, gpipe, most_held, play
from lms.workers.schedules import one_f_one_b as one


def _seconds(stage: int, action: Action) -> float:
    return 1.0 if action.kind == "forward" else 2.0


@pytest.mark.parametrize("make", SCHEDULES.values())
@pytest.mark.parametrize("stages", [2, 4, 7])
def test_the_bubble_of_equal_stages_is_that_of_the_formula(
    make: Callable[[int, int], Schedule], stages: int
) -> None:
    for micro_batches in range(1, 17):
        _, bubble = play(make(stages, micro_batches), _seconds)
        wanted = (stages - 1) / (micro_batches + stages - 1)
        assert bubble == pytest.approx(wanted)


@pytest.mark.parametrize("make", SCHEDULES.values())
def test_backwards_are_in_the_order_of_micro_batches(
    make: Callable[[int, int], Schedule],
) -> None:
    for actions in make(3, 5):
        for kind in ("forward", "backward"):
            assert [a.micro_batch for a in actions if a.kind == kind] == [*range(5)]


def test_taking_turns_holds_no_more_than_there_are_stages() -> None:
    assert [most_held(actions) for actions in one(3, 8)] == [3, 2, 1]
    assert [most_held(actions) for actions in gpipe(3, 8)] == [8, 8, 8]
    assert [most_held(actions) for actions in one(3, 2)] == [2, 2, 1]


def test_what_is_sent_takes_its_time() -> None:
    there_and_back, bubble = play(gpipe(2, 1), _seconds, wire=0.5)
    assert there_and_back == 1 + 0.5 + 1 + 2 + 0.5 + 2
    assert bubble == pytest.approx(1 - 6 / (2 * there_and_back))


def test_a_schedule_in_which_all_wait_is_refused() -> None:
    backward, forward = Action("backward", 0), Action("forward", 0)
    with pytest.raises(ValueError, match="one in which all stages wait"):
        play(((backward, forward), (forward, backward)), _seconds)
