"""Sums that TensorFlow's optimiser begins with a constant of zeros."""

from typing import Any

import pytest

from lms.units import KIB, MIB
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def changed(nodes: Any, fixed: frozenset[str] = frozenset()) -> dict[str, str]:
    """Ops by name, without those that stay the same."""
    from lms.tf.constants import without_constants

    before = [(node.name, node.SerializeToString()) for node in nodes]
    found = without_constants(nodes, fixed)
    assert [(node.name, node.SerializeToString()) for node in nodes] == before
    same = {text for _, text in before}
    return {n.name: n.op for n in found if n.SerializeToString() not in same}


def sums(elements: int, **more: Any) -> list[Any]:
    from tests.tf.memory_trials import sum_nodes

    return sum_nodes(elements, **more)


def test_a_large_constant_is_filled_in_and_taken_over() -> None:
    assert changed(sums(1 << 15)) == {
        "variable": "TemporaryVariable",
        "zeros": "Fill",
        "zeros/lms_shape": "Const",
        "zeros/lms_value": "Const",
        "begun": "Assign",
    }


def test_a_sum_in_a_loop_and_a_small_one_stay() -> None:
    assert changed(sums(1 << 15), frozenset({"begun"})) == {}
    assert changed(sums(1 << 13)) == {}


def test_a_constant_that_others_read_stays() -> None:
    assert changed(sums(1 << 15, also_read=True)) == {}


def test_a_constant_of_several_values_stays() -> None:
    nodes = sums(1 << 15)
    (zeros,) = (node for node in nodes if node.name == "zeros")
    zeros.attr["value"].tensor.float_val.extend([1.0, 2.0])
    assert changed(nodes) == {}


def test_the_sum_is_the_same_in_less_memory(worker: Worker) -> None:
    found = worker.ask("tests.tf.memory_trials:sums_of_both", memory="64MiB")
    assert found["equal"]
    # The constant is kept, and copied into the variable. What is kept instead is small.
    assert 4 * MIB - KIB <= found["own_peak"] - found["peak"] <= 4 * MIB
    assert 4 * MIB - KIB <= found["own_kept"] - found["kept"] <= 4 * MIB
