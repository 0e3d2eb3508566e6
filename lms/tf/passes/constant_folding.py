"""Ops of constants alone: TensorFlow runs them once and keeps what they make.

    Const ──> Neg ──> Div ──> Mul <── ...      as the graph says
                      Const ──> Mul <── ...    as the runtime has it

It does so when a function is made, on the host, whatever else is switched off. So such
a tensor lies on the device as long as the function exists, before it is read and after.

Source: TensorFlow 2.21, `common_runtime/constant_folding.cc` (`IsConstantFoldable`,
`ReplaceTensorWithConstant`, `kMaxConstantSize`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.loops import source_of
from lms.units import MIB

__all__ = ["LARGEST", "with_folded"]

LARGEST = 10 * MIB  # a larger tensor is made in each step


def with_folded(
    ops: Sequence[Op], nodes: Iterable[compat.NodeDef], results: Iterable[str]
) -> list[Op]:
    """Ops in order, those whose results TensorFlow keeps as constants.

    Tensors that such ops alone read take no memory.

    Args:
        ops: The ops.
        nodes: The nodes of those that are no arguments.
        results: Names of the tensors that outlive the step.
    """
    pure = {node.name for node in nodes if compat.is_pure(node)}
    folded: set[str] = set()
    readers: dict[str, list[str]] = {op.name: [] for op in ops}
    for op in ops:
        sources = {source_of(name) for name in op.inputs}
        for source in sources:
            readers[source].append(op.name)
        of_constants = op.name in pure and sources and sources <= folded
        if (op.constant or of_constants) and not op.fixed:
            folded.add(op.name)
    read_after = {source_of(name) for name in results}
    made: dict[str, Op] = {}
    stays: set[str] = set()  # as one of its readers does
    for op in reversed(ops):
        if op.name in folded:
            of_step = op.name in read_after or not folded.issuperset(readers[op.name])
            found = _found(op, readers, stays, of_step=of_step)
            if found is None:
                stays.add(op.name)
            else:
                made[op.name] = found
    return [made.get(op.name, op) for op in ops]


def _found(
    op: Op, readers: Mapping[str, list[str]], stays: set[str], *, of_step: bool
) -> Op | None:
    """An op as the runtime has it; None if that runs it in each step.

    It stays if one of its readers does, or if what ops of the step read is too large.
    """
    size = max((tensor.size for tensor in op.outputs), default=0)
    if (of_step and size > LARGEST) or not stays.isdisjoint(readers[op.name]):
        return None
    kept = replace(op, alias=None, inplace=False, repeatable=False, persistent=True)
    if of_step:
        return replace(kept, constant=True)
    return replace(kept, outputs=tuple(replace(t, size=0) for t in op.outputs))
