"""Small graphs of a step as text, for the proof to read.

a = Tanh(x)            reads x
b = NoOp(^a)           waits for a
c = Const() [1, 0]     of int32
d = Const() -0.0       of float32
e = _ParallelConcatUpdate(a, b) 1      writes row 1
"""

import json
import re
from typing import Any

import tensorflow as tf

from lms.proof.nodes import Step
from lms.tf import compat

__all__ = ["small_step"]

_LINE = re.compile(r"(\S+) = (\w+)\((.*?)\)(?: (.*))?")
_EFFECTS = {"ReadVariableOp", "AssignVariableOp", "AssignSubVariableOp", "PyFunc"}
_EFFECTS |= {"AssignAddVariableOp", "Empty", "RandomUniform", "CollectiveGatherV2"}


def small_step(
    text: str, results: str, *, variables: str = "w", x: int | None = None
) -> Step:
    """Return the step of a text, with arguments `x` and the named variables.

    `x` is one integer in all steps, or none that is known.
    """
    arguments = ["x", *variables.split()]
    return Step(
        nodes=[_node(line) for line in text.strip().splitlines()],
        functions={},
        arguments={f"{name}:0": i for i, name in enumerate(arguments)},
        handles=frozenset(range(1, len(arguments))),
        results=[f"{name}:0" for name in results.split()],
        effects=frozenset(_EFFECTS),
        numbers={} if x is None else {0: x},
    )


def _node(line: str) -> Any:
    found = _LINE.match(line.strip())
    assert found is not None, line
    name, op, inputs, value = found.groups()
    if value is not None and op == "Const":
        given = json.loads(value)
        is_float = isinstance(given, float)
        return compat.constant(name, given, tf.float32 if is_float else tf.int32)
    reads = filter(None, (each.strip() for each in inputs.split(",")))
    node = compat.made_node(name, op, reads, "/device:GPU:0")
    if value is not None:
        node.attr["loc"].i = int(value)
    if op == "PyFunc":
        node.attr["token"].s = name.encode()
    return node
