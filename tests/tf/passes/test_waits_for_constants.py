"""Nothing waits for ops of constants, else TensorFlow runs them in each step."""

import pytest

from lms.tf.compat import made_node
from lms.tf.nodes import Nodes
from lms.tf.passes import Step
from lms.tf.passes.constant_folding import WAIT_FOR_NO_CONSTANT
from tests.tf.steps import DEVICE

pytestmark = pytest.mark.tf


def test_only_waits_for_ops_of_constants_end() -> None:
    graph = Nodes(
        [
            made_node("one", "Const", []),
            made_node("minus", "Neg", ["one"]),
            made_node("two", "Const", ["^minus"]),
            made_node("x", "Placeholder", []),
            made_node("late", "Const", ["^x", "^two"]),
            made_node("read", "Neg", ["x", "^late", "^minus"]),
        ]
    )
    WAIT_FOR_NO_CONSTANT.run(graph, Step(device=DEVICE))
    assert {node.name: list(node.input) for node in graph} == {
        "one": [],
        "minus": ["one"],
        "two": [],
        "x": [],
        "late": ["^x"],
        "read": ["x", "^late"],
    }
