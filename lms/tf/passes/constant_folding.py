"""Constant folding: TensorFlow runs ops of constants once and keeps their outputs.

    Const ──> Neg ──> Div ──> Mul <── ...      as the graph says
                      Const ──> Mul <── ...    as the runtime has it

TensorFlow folds when it makes a function, on the host, whatever else is switched off.
So a folded tensor lies on the device as long as the function exists. An op that another
op waits for runs in each step all the same, so that waits for ops of constants go.

Source: TensorFlow 2.21, `common_runtime/constant_folding.cc` (`IsConstantFoldable`,
`ReplaceTensorWithConstant`, `kMaxConstantSize`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.ops import CONSTANT
from lms.tf.nodes import Nodes, data_of, source_of, waits_of
from lms.tf.passes import Pass, Step
from lms.units import MIB

__all__ = ["LARGEST", "WAIT_FOR_NO_CONSTANT", "folded", "with_folded"]

LARGEST = 10 * MIB  # of a folded tensor; a larger one is made in each step


def folded(
    nodes: Iterable[compat.NodeDef], fixed: Collection[str], *, may_wait: bool = True
) -> Iterator[str]:
    """Yield the names of constants, and of ops that read constants alone.

    Nodes that wait for others count if `may_wait`. Inputs come before their readers.
    """
    known = set[str]()
    for node in nodes:
        sources = {source_of(name) for name in data_of(node)}
        of_constants = sources <= known if sources else node.op in CONSTANT
        is_open = node.name not in fixed and (may_wait or not waits_of(node))
        if of_constants and is_open and compat.is_pure(node):
            known.add(node.name)
            yield node.name


def _waited_for(graph: Nodes, step: Step) -> Iterator[str]:
    for name in folded(graph, step.fixed, may_wait=False):
        if any(f"^{name}" in each.input for each in graph.followers(name)):
            yield name


WAIT_FOR_NO_CONSTANT = Pass(
    find=_waited_for, change=lambda graph, _, name: graph.replace_waits(name, ())
)


def with_folded(
    ops: Sequence[Op], nodes: Iterable[compat.NodeDef], results: Iterable[str]
) -> list[Op]:
    """Return the ops with folded ones as constants.

    Tensors that only folded ops read take no memory.
    """
    known = set(folded(nodes, {op.name for op in ops if op.fixed}))
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
