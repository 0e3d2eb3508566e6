"""Planners plan what they planned when it was recorded, on any machine.

Where a change is meant to change plans: `python -m tests.planning.record --plans`.
"""

from functools import cache

import pytest

from tests.planning.questions import Answer, Question, read_plans
from tests.planning.replaying import answer
from tests.planning.stored import read_step

_stored = cache(read_step)

# Steps that take longest to plan, and are like another: `transformer_float16`,
# `drawn_300`. Of other steps what takes longest: others ask about these too.
_LONG = {"transformer", "drawn_450", "drawn_750"}
_LONG |= {"unet3d: easy", "unet3d: tight", "resnet: tight", "resnet_bfloat16: tight"}
_LONG |= {"lstm_unrolled: easy", "lstm_unrolled: tight", "lstm_loop: refused"}
_LONG |= {"tagger: tight", "tagger: refused", "drawn_300: tight", "drawn_300: holes"}


@pytest.mark.parametrize(
    ("question", "recorded"),
    [
        pytest.param(
            question,
            recorded,
            id=str(question),
            marks=pytest.mark.long if {question.step, str(question)} & _LONG else (),
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
