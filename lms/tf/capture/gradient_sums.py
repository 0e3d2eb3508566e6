"""Sums of large tensors as ordinary additions, in one order.

    before                                     after
    variable <── zeros  (Assign)               a + 0 ──> + b ──> + c
        ├──> + a  (AssignAdd)
        ├──> + b                               each writes over the one before
        └──> + c  ──> its value (Destroy...)

Where a step adds up three and more large tensors, TensorFlow's optimiser adds each to a
temporary variable as it comes, so that all need not be there at once
(memory_optimizer.cc, `SchedulingPass`). As it comes means in any order, so in other
bits each time; and it begins with zeros, a constant as large as the sum, which the
runtime keeps for good (constant_op.cc). Additions one after the other need neither the
variable nor the constant, have an order, and can move and wait like other ops. Their
bits are those of the variable, were it added to in this order: zero plus a is a plus
zero.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.loops import source_of

__all__ = ["with_plain_sums"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """The nodes of one sum; those that add are in the order of the nodes given."""

    variable: compat.NodeDef
    zeros: compat.NodeDef
    begun: compat.NodeDef
    added: Sequence[compat.NodeDef]
    value: compat.NodeDef

    @property
    def names(self) -> frozenset[str]:
        nodes = (self.variable, self.zeros, self.begun, *self.added, self.value)
        return frozenset(node.name for node in nodes)


def with_plain_sums(
    ordered: Sequence[compat.NodeDef],
    fixed: Collection[str],
    outputs: Sequence[str] = (),
) -> list[compat.NodeDef]:
    """Nodes that yield the same sums without variables.

    Terms are added in the order in which a GPU's one thread that launches ops comes to
    them: the order of the nodes.

    Args:
        ordered: Nodes as they get ready; they are not changed.
        fixed: Names of those in loops and branches, which stay as they are.
        outputs: Names of the tensors that are returned.
    """
    by_name = {node.name: node for node in ordered}
    returned = {source_of(name) for name in outputs}
    readers: dict[str, dict[str, compat.NodeDef]] = defaultdict(dict)
    for node in ordered:
        for name in node.input:
            readers[source_of(name)][node.name] = node
    found = [
        one
        for node in ordered
        if node.op == "DestroyTemporaryVariable"
        and (one := _sum_of(node, by_name, readers)) is not None
        and one.names.isdisjoint(fixed)
        and returned.isdisjoint(one.names - {node.name})
    ]
    gone = frozenset[str]().union(*(one.names for one in found))
    made = {one.value.name: _additions(one) for one in found}
    return [
        node
        for given in ordered
        for node in made.get(given.name, [] if given.name in gone else [given])
    ]


def _sum_of(
    value: compat.NodeDef,
    by_name: Mapping[str, compat.NodeDef],
    readers: Mapping[str, Mapping[str, compat.NodeDef]],
) -> _Sum | None:
    """The sum that a variable is destroyed for; None if it is used in another way."""
    begun = by_name.get(source_of(value.input[0]))
    if begun is None or begun.op != "Assign":
        return None
    variable, zeros = (by_name.get(source_of(name)) for name in begun.input[:2])
    if variable is None or variable.op != "TemporaryVariable":
        return None
    if zeros is None or not _is_zero(zeros):
        return None
    added = [node for name, node in readers[begun.name].items() if name != value.name]
    waited_for = {name[1:] for name in value.input if name.startswith("^")}
    one = _Sum(variable=variable, zeros=zeros, begun=begun, added=added, value=value)
    # Nobody else may see the variable, nor the sum before it is complete.
    seen = {name for node in (variable, zeros) for name in readers[node.name]}
    seen |= {name for node in added for name in readers[node.name]}
    adds = all(
        node.op == "AssignAdd"
        and source_of(node.input[0]) == begun.name != source_of(node.input[1])
        for node in added
    )
    is_one = adds and bool(added) and waited_for >= {node.name for node in added}
    return one if is_one and seen <= {begun.name, value.name} else None


def _is_zero(node: compat.NodeDef) -> bool:
    """Tell whether a node is a constant of floating-point zeros."""
    if (
        node.op != "Const"
        or not tf.as_dtype(compat.attribute(node, "dtype").type).is_floating
    ):
        return False
    value = compat.attribute(node, "value").tensor
    written = [*value.float_val, *value.double_val, *value.half_val]
    return not any(written) and not value.tensor_content.strip(b"\0")


def _additions(one: _Sum) -> list[compat.NodeDef]:
    """A zero, and an addition for each tensor; the last has the name of the value."""
    name, device = one.value.name, one.value.device
    dtype = tf.as_dtype(compat.attribute(one.value, "T").type)
    zero = compat.constant(f"{name}/lms_zero", 0, dtype)
    zero.device = device
    nodes, before = [zero], zero.name
    added = one.added
    # The variable waits for what the sum does, and for a term, so as not to be early.
    terms_made = {f"^{source_of(node.input[1])}" for node in added}
    for number, node in enumerate(added):
        last = number == len(added) - 1
        plus = compat.NodeDef(name=name if last else f"{name}/lms_{number}", op="AddV2")
        first = (one.variable, one.zeros, one.begun) if number == 0 else ()
        waiting = (*first, node, *((one.value,) if last else ()))
        controls = [x for other in waiting for x in other.input if x.startswith("^")]
        outside = [
            name
            for name in dict.fromkeys(controls)
            if name[1:] not in one.names and name not in terms_made
        ]
        terms = (node.input[1], before) if number == 0 else (before, node.input[1])
        plus.input.extend([*terms, *outside])
        plus.attr["T"].type = dtype.as_datatype_enum
        plus.device = device
        nodes.append(plus)
        before = plus.name
    return nodes
