"""Constant folding: TensorFlow runs ops of constants once and keeps their outputs.

    Const ──> Neg ──> Div ──> Mul <── ...      as the graph says
                      Const ──> Mul <── ...    as the runtime has it

TensorFlow folds when it makes a function, on the host, whatever else is switched off.
So a folded tensor lies on the device as long as the function exists.

Source: TensorFlow 2.21, `common_runtime/constant_folding.cc` (`IsConstantFoldable`,
`ReplaceTensorWithConstant`, `kMaxConstantSize`).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.nodes import source_of
from lms.units import MIB

__all__ = ["LARGEST", "folded", "with_folded"]

LARGEST = 10 * MIB  # of a folded tensor; a larger one is made in each step


def folded(ops: Iterable[Op], pure: Set[str]) -> set[str]:
    """Return the names of constants, and of ops that read constants alone.

    Args:
        ops: The step's ops, each after its inputs.
        pure: Names of the ops without effects.
    """
    found: set[str] = set()
    for op in ops:
        sources = {source_of(name) for name in op.inputs}
        of_constants = op.name in pure and sources and sources <= found
        if (op.constant or of_constants) and not op.fixed:
            found.add(op.name)
    return found


def with_folded(
    ops: Sequence[Op], nodes: Iterable[compat.NodeDef], results: Iterable[str]
) -> list[Op]:
    """Return the ops with folded ones as constants.

    Tensors that only folded ops read take no memory.

    Args:
        ops: The step's ops, each after its inputs.
        nodes: TensorFlow's nodes of the ops, arguments left out.
        results: Names of the tensors that outlive the step.
    """
    known = folded(ops, {node.name for node in nodes if compat.is_pure(node)})
    readers: dict[str, list[str]] = {op.name: [] for op in ops}
    for op in ops:
        for source in {source_of(name) for name in op.inputs}:
            readers[source].append(op.name)
    read_after = {source_of(name) for name in results}
    made: dict[str, Op] = {}
    stays: set[str] = set()  # ops that run in each step
    for op in reversed(ops):
        if op.name in known:
            of_step = op.name in read_after or not known.issuperset(readers[op.name])
            found = _found(op, readers, stays, of_step=of_step)
            if found is None:
                stays.add(op.name)
            else:
                made[op.name] = found
    return [made.get(op.name, op) for op in ops]


def _found(
    op: Op, readers: Mapping[str, list[str]], stays: set[str], *, of_step: bool
) -> Op | None:
    """Return a folded op as the runtime has it; None if the op runs in each step.

    An op runs if one of its readers does, or if the step reads more than `LARGEST`, or
    numbers of int32 on the device: TensorFlow's constants of int32 lie on the host.
    """
    size = max((tensor.size for tensor in op.outputs), default=0)
    is_kept = size <= LARGEST and not any(
        t.size and t.dtype == "int32" for t in op.outputs
    )
    if (of_step and not is_kept) or not stays.isdisjoint(readers[op.name]):
        return None
    kept = replace(op, alias=None, inplace=False, repeatable=False, persistent=True)
    if of_step:
        return replace(kept, constant=True)
    return replace(kept, outputs=tuple(replace(t, size=0) for t in op.outputs))
