"""Planners plan what they planned when it was recorded, on any machine.

Where a change is meant to change plans: `python -m tests.planning.record --plans`.
"""

from dataclasses import replace
from functools import cache

import pytest

from lms.planning.tuning import TUNING
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

# Sealed plans that are slower, by how much.
_SLOWER = {"lstm_unrolled: tight": 1.13, "ties: middle": 1.02}


# Steps that are planned twice, sealed and not, in a short time.
_SHORT = ("own_train_step", "by_hand_twice", "by_hand_skip", "by_hand_reshape")


def _is_long(question: Question, *, compared: bool = False) -> bool:
    if compared:
        return question.step not in _SHORT
    if question.step in _ASKED:
        return str(question) in _LONG
    return question.case not in ("searched", "forced", "fits", "searched in vain")


def _cases(*, sealed: bool) -> pytest.MarkDecorator:
    """All questions, or those about steps that can be sealed."""
    return pytest.mark.parametrize(
        ("question", "recorded"),
        [
            pytest.param(
                question,
                recorded,
                id=str(question),
                marks=pytest.mark.long if _is_long(question, compared=sealed) else (),
            )
            for question, recorded in read_plans()
            if not sealed or recorded.get("sealed") or question.case == "refused"
        ],
    )


@_cases(sealed=False)
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


@_cases(sealed=True)
def test_a_sealed_plan_is_not_slower_than_an_unsealed_one_in_the_same_bytes(
    question: Question, recorded: Answer
) -> None:
    got = answer(_stored(question.step), replace(question, unsealed="compared"))
    if "refused" in recorded:
        assert recorded["least_bytes"] <= got["least_bytes"]
    elif "seconds" in got:
        most = _SLOWER.get(str(question), TUNING.about_as_fast)
        assert recorded["seconds"] <= most * got["seconds"]
