"""Planners plan what they planned when it was recorded, on any machine.

Where a change is meant to change plans: `python -m tests.planning.record --plans`.
"""

from functools import cache

import pytest

from tests.planning.questions import Answer, Question, read_plans
from tests.planning.replaying import answer
from tests.planning.stored import read_step

_stored = cache(read_step)

# One step of each kind is asked all: an own `train_step` on images, volumes, attention,
# a loop, words, a large drawn graph, graphs by hand; others what takes no time.
_ASKED = ("own_train_step", "ties", "transformer_float16", "lstm_loop", "embedding")
_ASKED += ("drawn_300", "by_hand_twice", "by_hand_skip", "by_hand_reshape")
_LONG = {"lstm_loop: refused", "drawn_300: tight", "drawn_300: holes"}
_LONG |= {"drawn_300: middle", "drawn_300: whole device"}


def _is_long(question: Question) -> bool:
    if question.step in _ASKED:
        return str(question) in _LONG
    return question.case not in ("searched", "forced", "fits", "searched in vain")


@pytest.mark.parametrize(
    ("question", "recorded"),
    [
        pytest.param(
            question,
            recorded,
            id=str(question),
            marks=pytest.mark.long if _is_long(question) else (),
        )
        for question, recorded in read_plans()
    ],
)
def test_what_is_planned_is_what_was_recorded(
    question: Question, recorded: Answer
) -> None:
    got = answer(_stored(question.step), question)
    differences = [
        f"{name} was {recorded.get(name)}, now {got.get(name)}"
        for name in recorded | got
        if recorded.get(name) != got.get(name)
    ]
    assert not differences, "\n".join(differences)
