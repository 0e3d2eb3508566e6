"""Records what the planners make of many steps: `python -m tests.planning.record`.

`test_recorded_plans` then keeps them from planning anything else. After a change that
is meant to change plans, `--plans` plans the stored steps anew: the difference of
`recorded/plans.jsonl` says what changed. Without it steps are traced too, and differ
wherever TensorFlow or Keras does.

Budgets lie between the least that works and what the plain step takes, both asked of
the planners and then written down: `--plans` asks for the same budgets again.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from lms.units import MIB
from tests import conftest  # noqa: F401 - turns oneDNN off, or graphs depend on it
from tests.planning.questions import Question, read_plans, write_plans
from tests.planning.replaying import answer, plain_peak
from tests.planning.stored import FOLDER, StoredStep, read_step, write_step

__all__ = ["main"]

# Steps take turns.
_HARDWARE = ("v100-pcie", "gh200", "v100-pcie", "v100-nvlink")

# Thresholds that are given; steps take turns.
_FORCED: tuple[dict[str, Any], ...] = (
    {"swapout_threshold": 3, "swapin_ahead": 2, "swapin_groupby": 1},
    {"swapout_threshold": 8, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 1},
    {"swapout_threshold": 2, "swapin_ahead": 4, "swapin_groupby": 5, "sync_mode": 2},
    {"swapout_threshold": 5, "swapin_ahead": 3, "swapin_groupby": 2, "sync_mode": 3},
    {"swapout_threshold": 4, "swapin_ahead": 2, "serialization": ["3:9", 12]},
    {"swapout_threshold": 6, "serialization_by_size": 64 * MIB},
)

# Budgets as parts of the way from the least one to what the plain step may take.
_EASY, _MIDDLE, _TIGHT = 0.8, 0.4, 0.05

# Of the plain step's peak: below the former a step is planned, above the latter not.
_MOST, _ENOUGH = 1.12, 1.3

# Steps with more questions than most; and steps with fewer, since planning is slow.
_ASKED_MORE = ("two_by_two", "ties", "drawn_300")
_ASKED_LESS = ("unet3d", "resnet", "resnet_bfloat16", "transformer")
_ASKED_LESS += ("transformer_float16", "lstm_unrolled", "drawn_750")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write steps and plans."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--plans", action="store_true", help="keep the stored steps")
    if parser.parse_args(arguments).plans:
        questions = [question for question, _ in read_plans()]
    else:
        questions = list(_questions_anew())
    steps = {name: read_step(name) for name in {each.step for each in questions}}
    write_plans((each, answer(steps[each.step], each)) for each in questions)
    return 0


def _questions_anew() -> Iterator[Question]:
    """Store the steps, and ask about each."""
    from tests.planning.recorded_steps import STEPS

    FOLDER.mkdir(exist_ok=True)
    for number, (name, make) in enumerate(STEPS.items()):
        write_step(name, make())
        step = read_step(name)
        yield from _questions(number, name, step)
        if name in _ASKED_MORE:
            yield from _rare_questions(name, step)


def _questions(number: int, name: str, step: StoredStep) -> Iterator[Question]:
    hardware = _HARDWARE[number % len(_HARDWARE)]

    def ask(case: str, **knobs: Any) -> Question:
        return Question(step=name, case=case, hardware=hardware, knobs=knobs)

    held, plain, least = step.persistent, plain_peak(step), _least(name, step)
    middle, tight = _budget(name, step, _MIDDLE), _budget(name, step, _TIGHT)
    yield ask("easy", budget=_budget(name, step, _EASY))
    yield ask("middle, only moving", budget=middle, recompute=False)
    yield ask("tight", budget=tight)
    yield ask("searched", budget=held + plain * 3 // 4, thresholds={})
    yield ask("forced", thresholds=_FORCED[number % len(_FORCED)])
    if name in _ASKED_LESS:
        return
    yield ask("middle", budget=middle)
    yield ask("tight, making again", budget=tight, recompute=True)
    yield ask("refused", budget=held + (least - held) * 6 // 10)


def _rare_questions(name: str, step: StoredStep) -> Iterator[Question]:
    middle = _budget(name, step, _MIDDLE)
    room, plain = middle - step.persistent, plain_peak(step)
    roomy = step.persistent + int(plain * _ENOUGH)
    ask = partial(Question, step=name, hardware="v100-pcie")
    yield ask(case="fits", knobs={"budget": roomy})
    yield ask(case="whole device", memory=middle + 2 * MIB)
    holes = (room // 4, room // 16)
    yield ask(
        case="holes", memory=middle + 2 * MIB, holes=holes, unsealed="holes are large"
    )
    stay = {"budget": middle, "filters": {"exclude_types": ["Relu", "Mul", "Conv3D"]}}
    yield ask(case="filtered", knobs=stay)
    hopeless = {"budget": step.persistent + plain // 20, "thresholds": {}}
    yield ask(case="searched in vain", knobs=hopeless)


def _budget(name: str, step: StoredStep, part: float) -> int:
    """So far from the least budget to what the plain step may take."""
    least = _least(name, step)
    most = step.persistent + int(plain_peak(step) * _MOST)
    return least + int(part * (most - least))


def _least(name: str, step: StoredStep) -> int:
    """The least budget that works, as a refusal says it."""
    knobs = {"budget": step.persistent + 1}
    hopeless = Question(step=name, case="", hardware=_HARDWARE[0], knobs=knobs)
    return answer(step, hopeless)["least_bytes"]


if __name__ == "__main__":
    raise SystemExit(main())
