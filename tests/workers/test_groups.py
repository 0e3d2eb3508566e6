"""Loose groups: how parameters meet, who counts, and who comes back."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms
from lms.errors import WorkersError
from lms.workers.buffer import buffer_path
from lms.workers.groups import Elastic, Groups, Nesterov, outer_of
from lms.workers.launching import launch
from tests.models import SILENT

pytestmark = pytest.mark.tf


@pytest.fixture
def name() -> Iterator[str]:
    name = f"groups-{os.getpid()}"
    yield name
    buffer_path(name).unlink(missing_ok=True)


def _group(name: str, value: float, outer: Any) -> tuple[Groups, Any]:
    variable: Any = tf.Variable(tf.fill([2], value))
    return Groups(name, outer, [variable]), variable


def test_nesterov_s_second_step_has_the_velocity_of_the_first() -> None:
    outer = Nesterov(rate=0.5, momentum=0.5)
    outer.begin([np.float32(8)])
    # d = 8 - 4, v = 4: 8 - (4 + 2) / 2; then d = 5 - 3, v = 2 + 2: 5 - (2 + 2) / 2.
    assert outer.step([], [np.float32(4)]) == [np.float32(5)]
    assert outer.step([], [np.float32(3)]) == [np.float32(3)]


def test_groups_that_meet_at_one_time_agree(name: str) -> None:
    groups = [_group(name, 1.0, Nesterov()) for _ in range(3)]
    for group, _ in groups:
        group.begin()
    for i, (_, variable) in enumerate(groups):
        variable.assign_sub([i, i])
    for group, variable in groups:
        group.buffer.push([variable.numpy()], 1)
    assert [group.meet(1) for group, _ in groups] == [3, 3, 3]
    # The mean is 1 - (0 + 1 + 2) / 3, and the first step's velocity is d itself.
    assert groups[0][1].numpy() == pytest.approx([1 - 0.7 * 1.9] * 2)


def test_a_group_that_is_alone_just_trains(name: str) -> None:
    group, variable = _group(name, 4.0, Nesterov())
    group.begin()
    for value in (2.0, 1.0):
        variable.assign([value, value])
        assert group.meet(1) == 1
        assert variable.numpy() == pytest.approx([value, value])


def test_who_is_gone_counts_in_two_meetings_only(name: str) -> None:
    here, variable = _group(name, 4.0, Elastic())
    gone, _ = _group(name, 0.0, Elastic())
    here.begin()
    gone.meet(1)
    assert [here.meet(i) for i in range(4)] == [2, 2, 1, 1]
    assert variable.numpy() == pytest.approx([4 * 0.75 * 0.75] * 2)


def test_an_outer_step_is_known_by_its_name() -> None:
    assert outer_of("elastic") == Elastic()
    with pytest.raises(ValueError, match="`outer` must be one of nesterov, elastic"):
        outer_of("adam")
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        lms.DataParallel(lms.join(), every=0)


def _fitted(name: str, *, units: int = 2, epochs: int = 1) -> tuple[Any, int]:
    """A model after a training, and the steps that it made."""
    layer = keras.layers.Dense(units, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    counted: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: counted.append(batch)
    )
    own = lms.DataParallel(lms.join(), groups=name, outer="elastic", every=3)
    data = np.ones((40, 4), "float32"), np.zeros((40, units), "float32")
    model.fit(
        *data, batch_size=4, epochs=epochs, verbose=SILENT, callbacks=[own, count]
    )
    return model, len(counted)


def test_who_comes_back_goes_on_where_the_buffer_is(name: str) -> None:
    first, steps = _fitted(name)
    assert steps == 10
    again, steps = _fitted(name, epochs=2)
    assert steps == 10, "of twenty steps, the buffer has seen ten"
    sums = [np.abs(model.get_weights()[0]).sum() for model in (first, again)]
    assert sums[1] < sums[0] < 8


def test_a_buffer_of_another_model_is_refused_before_the_first_step(name: str) -> None:
    _fitted(name)
    with pytest.raises(WorkersError, match="must be of this model"):
        _fitted(name, units=3)


def _launched(*words: str, workers: int = 2, groups: int = 2) -> tuple[int, str]:
    """Return the exit code of a Python program's workers, and what they printed."""
    out, environ = io.StringIO(), {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    counts: Any = {"workers": workers, "groups": groups}
    ended = launch([sys.executable, *words], **counts, environ=environ, out=out)
    return ended, out.getvalue()


@pytest.mark.long
def test_a_group_that_is_killed_comes_back_and_all_end_together(tmp_path: Path) -> None:
    ended, text = _launched("-m", "tests.workers.group_trials", str(tmp_path))
    assert ended == 0, text
    assert text.count("starting its group again") == 1
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert all(60 <= one["done"] <= 61 for one in found), "who comes late makes one"
    assert all(one["loss"] < 1 for one in found), "it begins at about four"


_MAKES_THE_BUFFER = """
import os, numpy
from lms.workers.buffer import Buffer
Buffer(os.environ["LMS_BUFFER"], {"w": numpy.ones(2)})
"""

_DIES_EARLY = """
import json, os, pathlib, signal, sys
killed = pathlib.Path(sys.argv[1])
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] and not killed.exists():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)
import lms
lms.join(timeout=3600)
"""


def test_who_waits_for_one_that_was_killed_starts_again(tmp_path: Path) -> None:
    code, killed = _MAKES_THE_BUFFER + _DIES_EARLY, str(tmp_path / "killed")
    ended, text = _launched("-c", code, killed, groups=1)
    assert ended == 0, text
    assert text.count("signal SIGKILL; starting its group again") == 1


@pytest.mark.parametrize(("begins", "starts"), [(_MAKES_THE_BUFFER, 2), ("", 0)])
def test_a_group_that_fails_starts_again_twice_if_it_has_begun(
    begins: str, starts: int
) -> None:
    ended, text = _launched("-c", f"{begins}raise SystemExit(3)", workers=1, groups=1)
    assert (ended, text.count("starting its group again")) == (3, starts)


def test_workers_that_are_no_multiple_of_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 2 groups, got 3"):
        launch(["true"], workers=3, groups=2)


def test_buffers_of_launches_do_not_stay() -> None:
    code = f"{_MAKES_THE_BUFFER}print(os.environ['LMS_BUFFER'])"
    names = {line.partition("] ")[2] for line in _launched("-c", code)[1].splitlines()}
    assert len(names) == 1
    assert not buffer_path(names.pop()).exists()
