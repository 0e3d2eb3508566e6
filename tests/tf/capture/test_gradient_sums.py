"""Sums that TensorFlow's optimiser adds up in a variable, as it makes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lms.tf import compat
from lms.tf.capture.gradient_sums import with_plain_sums
from lms.units import KIB, MIB
from tests.tf.sum_trials import run_sum, sum_nodes
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def changed(
    nodes: Any, fixed: frozenset[str] = frozenset(), outputs: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Inputs of the nodes that make the sums instead, by name."""
    given = [node.SerializeToString() for node in nodes]
    found = with_plain_sums(nodes, fixed, outputs)
    assert [node.SerializeToString() for node in nodes] == given
    return {n.name: list(n.input) for n in found if n.SerializeToString() not in given}


def nodes_of(name: str) -> list[Any]:
    nodes = sum_nodes(1 << 10)
    if name == "variable":
        nodes.append(node_like(nodes, "begun", "other", "variable"))
    elif name == "zeros":
        nodes.append(node_like(nodes, "begun", "other", "zeros"))
    elif name == "begun":
        nodes.append(node_like(nodes, "begun", "other", "begun"))
    elif name == "not zero":
        by_name(nodes)["zeros"].attr["value"].tensor.float_val[:] = [1.0]
    elif name == "itself":
        by_name(nodes)["added_1"].input[1] = "begun"
    elif name == "whole numbers":
        by_name(nodes)["zeros"].attr["dtype"].type = 3
    elif name == "not waited for":
        by_name(nodes)["sum"].input.remove("^added_1")
    return nodes


def by_name(nodes: Any) -> dict[str, Any]:
    return {node.name: node for node in nodes}


def node_like(nodes: Any, model: str, name: str, *inputs: str) -> Any:
    node = compat.NodeDef()
    node.CopyFrom(by_name(nodes)[model])
    node.name, node.op = name, "Identity"
    del node.input[:]
    node.input.extend(inputs)
    return node


def test_terms_are_added_as_they_get_ready() -> None:
    # The variable is added to in another order.
    assert changed(nodes_of("as made")) == {
        "sum/lms_zero": [],
        "sum/lms_0": ["first:0", "sum/lms_zero", "^go"],
        "sum/lms_1": ["sum/lms_0", "second:0", "^then"],
        "sum": ["sum/lms_1", "third:0"],
    }


@pytest.mark.parametrize(
    "name",
    [
        "variable",
        "zeros",
        "begun",
        "not zero",
        "itself",
        "whole numbers",
        "not waited for",
    ],
)
def test_a_variable_that_is_used_otherwise_stays(name: str) -> None:
    assert changed(nodes_of(name)) == {}


def test_a_variable_that_is_returned_or_in_a_loop_stays() -> None:
    assert changed(nodes_of("as made"), outputs=["begun:0"]) == {}
    assert changed(nodes_of("as made"), outputs=["sum:0"])
    assert changed(nodes_of("as made"), frozenset({"added_1"})) == {}


def test_the_order_does_not_depend_on_that_of_the_nodes() -> None:
    nodes = nodes_of("as made")
    swapped = sorted(nodes, key=lambda node: node.name != "second")
    assert changed(swapped) == changed(nodes)


def test_the_sum_has_the_bits_of_its_order_in_less_memory(worker: Worker) -> None:
    found = worker.ask("tests.tf.sum_trials:sums_of_both", memory="128MiB")
    assert found["equal"]
    # Neither the constant nor the variable, and nothing is kept.
    size = found["size"]
    assert found["own_kept"] - found["kept"] >= size - KIB
    assert found["own_peak"] - found["peak"] >= 2 * size - KIB
    assert size == 4 * MIB


def test_negative_zeros_come_out_as_of_a_variable_of_zeros() -> None:
    terms = [np.full([4], -0.0, np.float32)] * 3
    for plain in (False, True):
        assert not np.signbit(run_sum(terms, plain=plain)).any()


def test_planned_steps_have_the_same_bits_and_the_predicted_peak(
    worker: Worker,
) -> None:
    trial = "tests.tf.sum_trials:branches"
    plain = worker.ask(trial, memory="320MiB", budget=None)
    assert plain["own"]  # or the optimiser leaves such sums as they are now
    planned = [
        worker.ask(trial, memory="320MiB", budget=budget)
        for budget in ("200MiB", "96MiB")
    ]
    assert planned[0]["weights"] == planned[1]["weights"]
    assert planned[1]["swaps"]
    for found in planned:
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
        assert found["measured"] == pytest.approx(found["predicted"], rel=0.1)
        assert found["measured"] <= found["budget"]
