"""Errors: one family, each also the built-in error of its kind."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lms.errors import (
    BudgetError,
    HostMemoryError,
    LMSError,
    PlanError,
    UnsupportedError,
)


@pytest.mark.parametrize(
    ("error", "built_in"),
    [
        (BudgetError, ValueError),
        (PlanError, ValueError),
        (UnsupportedError, ValueError),
        (HostMemoryError, MemoryError),
    ],
)
def test_an_error_is_ours_and_the_built_in_one(
    error: type[LMSError], built_in: type[Exception]
) -> None:
    for caught_as in (LMSError, built_in):
        with pytest.raises(caught_as, match="the message"):
            raise error("the message")


def test_a_budget_error_survives_the_way_between_processes() -> None:
    error = BudgetError("too little", op_name="conv1_grad", least_bytes=4096)
    copy = pickle.loads(pickle.dumps(error))
    told = (str(copy), copy.op_name, copy.least_bytes)
    assert told == ("too little", "conv1_grad", 4096)


def searched(*pairs: tuple[int, int]) -> tuple[BudgetError, list[tuple[int, int]]]:
    """An error whose least budget is between bounds, and the bounds that were asked."""
    asked = list[tuple[int, int]]()
    bounds = (asked.append(pair) or pair for pair in pairs)
    return BudgetError("at least {} B".format, bounds=bounds), asked


def test_a_least_budget_is_searched_as_far_as_a_comparison_needs() -> None:
    error, asked = searched((10, 90), (10, 50), (30, 50), (40, 40))
    assert error.exceeds(9)
    assert not error.exceeds(90)
    assert len(asked) == 1
    assert error.exceeds(20)
    assert len(asked) == 3
    assert (error.exceeds(39), error.exceeds(40)) == (True, False)
    assert (error.least_bytes, len(asked)) == (40, 4)


def test_a_search_that_was_interrupted_ends_at_its_upper_bound() -> None:
    def bounds() -> Iterator[tuple[int, int]]:
        yield 10, 90
        raise KeyboardInterrupt

    error = BudgetError("at least {} B".format, bounds=bounds())
    with pytest.raises(KeyboardInterrupt):
        str(error)
    assert (error.least_bytes, str(error)) == (90, "at least 90 B")
    assert repr(error) == "BudgetError('at least 90 B')"


def test_of_two_least_budgets_one_is_above_where_the_bounds_part() -> None:
    one, asked = searched((10, 90), (60, 90), (70, 70))
    other, _ = searched((20, 80), (20, 50), (40, 40))
    assert one.exceeds(other)
    assert not other.exceeds(one)
    assert len(asked) == 2
    assert not BudgetError("unknown").exceeds(0)


def test_a_restated_error_makes_its_message_when_somebody_reads() -> None:
    error, asked = searched((10, 90), (40, 40))
    error.restate(lambda least: least + 5, "the step needs {}".format)
    error.restate(lambda least: 2 * least)
    assert not error.exceeds(190)
    assert len(asked) == 1
    assert str(error) == "the step needs 40"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.least_bytes, copy.exceeds(89)) == (str(error), 90, True)


# Errors that a user may see, and what each message has: the rule with the value, or
# what could not be done and why; then the next step, a sentence of its own.
SEEN = {
    *("ValueError", "TypeError", "FileNotFoundError", "LMSError", "BudgetError"),
    *("UnsupportedError", "HostMemoryError", "OutOfMemoryError", "WorkersError"),
    *("MissingExtraError", "NoDriverError"),
}
SAID = re.compile(r"(.* must .*|Could not .*|\{\}, got .*)[.:;] ([A-Z`{]|\S+ lists ).*")

# Errors that never leave the library as they are, and what becomes of each.
CAUGHT = {
    "PlanError": "another plan and a log line (`first_plan`), or said with `plan`",
    "UnprovedError": "another plan (`_other` of `lms.tf.attempts`)",
    "Refuted": "another plan, as an `UnprovedError` (`lms.tf.proving`)",
    "UnsealedError": "the step is built with unplanned addresses (`Captured.built`)",
    "MemoryError": "another packing, plan or place",
    "UnboundedError": "the size is unknown (`lms.tf.capture.bound_rules`)",
    "_NotPossibleError": "the tensor is moved, not recomputed",
    "_Aborted": "the step is planned anew (`run_recovering`)",
    "_Moved": "the step is sealed anew (`run_recovering`)",
    "RuntimeError": "`ChangedTensorError`, by the flag that the host function raised",
    "KeyboardInterrupt": "the user's own",
    "SystemExit": "the exit code of a command",
    "AttributeError": "Python's protocol of modules",
    "AssertionError": "`Could not plan the step` (`lms.fit.fitted`)",
    "ArgumentTypeError": "argparse's line, of a ValueError's text",
    "OSError": "a caller of `lms.emulation` alone, on another card",
    "ChangedTensorError": "the texts of `lms.tf.failures`",
}

# Messages of another form, and files whose graphs are made by this library alone.
OTHERS = ("is no knob of", "cannot go on:", "did not reach", "could not compile")
OTHERS += ("is missing. Run", "an emulated card needs")
OWN = ("ir/graph.py", "storage/files.py", "tf/compat.py")


def text_of(node: ast.expr) -> str:
    """A message as text, with {} for each value; empty where names alone make it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "{}" if isinstance(node, ast.FormattedValue) else ""


def errors_made(path: Path) -> Iterator[tuple[str, str]]:
    """Each error that a file makes: its class, and its message as far as it is text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in SEEN | CAUGHT.keys() or name.endswith("Error"):
                yield name, text_of(node.args[0]) if node.args else ""
        made = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(made, ast.Name) and not made.id.islower():  # a class
            yield made.id, ""


FILES = sorted((Path(__file__).parents[1] / "lms").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_each_error_has_rule_value_and_next_step_or_becomes_something_else(
    path: Path,
) -> None:
    for name, text in errors_made(path):
        assert name in SEEN | CAUGHT.keys(), f"{name} needs a message or an end"
        is_seen = name in SEEN and text and not str(path).endswith(OWN)
        if is_seen and not any(other in text for other in OTHERS):
            assert SAID.fullmatch(text), f"{name}: {text}"


@pytest.mark.parametrize(
    "text",
    [
        "Something went wrong.",
        "`budget` must be at least {}, got {}.",
        "Could not plan the step.",
        "Could not plan the step: a cycle.",
    ],
)
def test_a_message_without_rule_or_next_step_is_found(text: str) -> None:
    assert not SAID.fullmatch(text)
