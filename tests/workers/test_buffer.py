"""The buffer in which groups meet: whole values, whoever dies or stops."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lms.errors import WorkersError
from lms.workers.buffer import Buffer, buffer_path

ROOT = Path(__file__).parents[2]
LIKE = {"kernel": np.zeros((300, 40), "float32"), "step": np.zeros((), "float64")}

# Pushes values that are all alike, for ever.
PUSHES = """
import sys, numpy as np
from lms.workers.buffer import Buffer
like = {"kernel": np.zeros((300, 40), "float32"), "step": np.zeros((), "float64")}
buffer = Buffer(sys.argv[1], like)
for i in range(1 << 40):
    buffer.push([np.full((300, 40), i), np.float64(i)], i)
    if i == 10:
        print(buffer.slot, flush=True)
"""


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}"
    yield name
    buffer_path(name).unlink(missing_ok=True)


def _values(value: float) -> list[Any]:
    return [np.full((300, 40), value, "float32"), np.float64(value)]


def _started(name: str) -> tuple[subprocess.Popen[str], int]:
    """A process that pushes, and its slot."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUSHES, name],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        return process, int(lines.readline())


def test_what_is_pushed_is_read_by_all(name: str) -> None:
    first, second = Buffer(name, LIKE), Buffer(name, LIKE)
    assert first.members() == []
    first.push(_values(1), 10)
    first.push(_values(2), 20)
    (count, values), *others = second.read().values()
    assert count == 2
    assert (values[0] == 2).all()
    assert values[1] == 2.0
    assert others == []
    assert [(one.pushes, one.step) for one in second.members()] == [(2, 20)]


def test_who_begins_later_begins_with_what_was_pushed_last(name: str) -> None:
    first, second = Buffer(name, LIKE), Buffer(name, LIKE)
    step, values = first.begin(_values(1))
    assert (step, values[1]) == (0, 1.0)
    assert second.begin(_values(2))[1][1] == 1.0
    first.push(_values(3), 30)
    step, values = second.begin(_values(2))
    assert (step, values[1]) == (30, 3.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_dies_or_stops_leaves_whole_values_and_holds_nobody_up(
    name: str, number: int
) -> None:
    own = Buffer(name, LIKE)
    for _ in range(3):
        process, slot = _started(name)
        try:
            assert slot == 1, "the slot of one that has ended is free"
            process.send_signal(number)
            if number == signal.SIGKILL:
                process.wait()
            own.push(_values(-1), 1)
            kernel, step = own.read()[slot][1]
            assert (kernel == step).all()
            assert step >= 10
        finally:
            process.kill()
            process.wait()


def test_a_buffer_of_another_model_is_refused(name: str) -> None:
    Buffer(name, LIKE)
    with pytest.raises(WorkersError, match="must be of this model, got one of another"):
        Buffer(name, {**LIKE, "kernel": np.zeros((300, 41), "float32")})


def test_a_buffer_that_was_lost_is_made_anew(name: str) -> None:
    own = Buffer(name, LIKE)
    own.push(_values(1), 1)
    own.path.unlink()
    own.push(_values(2), 2)
    other = Buffer(name, LIKE)
    assert [values[1] for _, values in other.read().values()] == [2.0]


def test_a_name_is_a_name() -> None:
    with pytest.raises(ValueError, match="a name without '/'"):
        buffer_path("a/b")
