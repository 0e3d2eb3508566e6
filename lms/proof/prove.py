"""Prove that a rewritten step does what the step before does, in every order.

    values   what leaves the step is the same op of the same values (`lms.proof.values`)
    order    copies, releases and writes come when they may (`lms.proof.order`)
    bytes    what lives at once stays within what was promised (`lms.proof.memory`)

Of a step that is not proved, the first value, edge or moment is named. No step runs
whose values or order are not proved. Bytes are reported: the bound counts orders that
loops and several devices allow, and no run has.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lms.proof.memory import find_most
from lms.proof.nodes import Graph, Node, Refuted, Step
from lms.proof.order import Promise, check_copies, check_releases, check_writes
from lms.proof.values import Table, Values

__all__ = ["Promise", "Proof", "prove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The outcome of a proof.

    Args:
        failed: The first value, edge or moment that is not proved; empty if all are.
        laws: Names of the laws that were used.
        bytes_failed: The moment at which bytes are not proved; empty if all are.
        most: Bytes that live at once at most, by device.
        is_fault: Whether the proof failed by a fault of its own.
    """

    failed: str = ""
    laws: tuple[str, ...] = ()
    bytes_failed: str = ""
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    is_fault: bool = False

    @property
    def proved(self) -> bool:
        """Tell whether values and order are proved."""
        return not self.failed

    def __str__(self) -> str:
        """Say what is proved."""
        if self.failed:
            return f"not proved: {self.failed}"
        if self.bytes_failed:
            return f"values, order; not bytes: {self.bytes_failed}"
        return "values, order, bytes" if self.most else "values, order"


def prove(
    before: Step, after: Step, promise: Promise, shapes: Mapping[Any, Any] | None = None
) -> Proof:
    """Prove a rewritten step.

    Args:
        before: The step as TensorFlow made it.
        after: The rewritten step.
        promise: What the rewritten step may do besides.
        shapes: Shapes of the outputs of each op before, and of arguments by position;
            needed where ops are in parts.
    """
    table, collects = Table(shapes=shapes or {}), gc.isenabled()
    most, failed = dict[str, int](), {"failed": "", "bytes_failed": ""}
    part, is_fault = "failed", False
    gc.disable()  # a collection would go through TensorFlow and Keras
    try:
        first, last = Graph(before), Graph(after)
        found = Values(last, table, Values(first, table))
        _check_effects(found, found.compare(), promise)
        check_copies(last)
        check_releases(last, promise)
        check_writes(found, promise)
        part = "bytes_failed"
        for device, limit in promise.most.items():
            most[device], at = find_most(last, promise.footprints[device])
            if most[device] > limit:
                failed[part] = f"up to {most[device]} of {limit} live at once at {at!r}"
    except Refuted as error:
        failed[part] = str(error)
    except Exception as error:  # of a graph that the proof cannot read
        failed[part], is_fault = f"the proof ended in {error!r}", part == "failed"
    finally:
        if collects:
            gc.enable()
    return Proof(laws=tuple(table.laws), most=most, is_fault=is_fault, **failed)


def _check_effects(values: Values, new: Sequence[Node], promise: Promise) -> None:
    """Check that new effects were promised, and take what they say.

    Raises:
        Refuted: Names the first effect.
    """
    for node in new:
        token = node.proto.attr["token"].s.decode() if node.op == "PyFunc" else ""
        if node.op != "Empty" and token not in promise.calls:  # which has no values
            raise Refuted(f"effect {node.name!r} is new")
        taken = promise.calls.get(token, ())
        for read, variable in zip(node.reads, taken, strict=False):
            if values.of(read) != values.table.number("initial", variable):
                raise Refuted(f"undo copy {read[0]!r} has not its variable's old value")
