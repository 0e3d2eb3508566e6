"""Prove that a rewritten step does what the step before does, in every order.

    values   what leaves the step is the same op of the same values (`lms.proof.values`)
    order    copies, releases and writes come when they may (`lms.proof.order`)
    bytes    what lives at once stays within what was promised (`lms.proof.memory`)

Of a step that is not proved, the first value, edge or moment is named. The report of a
step says what is proved; a step without a proof runs all the same.

Known weakness: a branch that `lms.tf.passes.branches` took away is not proved.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lms.proof.memory import Footprint, find_most
from lms.proof.nodes import Graph, Refuted, Step
from lms.proof.order import check_copies, check_releases, check_writes
from lms.proof.values import Table, Values

__all__ = ["Promise", "Proof", "prove"]

_HARMLESS = {"Empty"}  # memory with values that no result may depend on


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Effects that a rewritten step may add, and limits that it must keep.

    Args:
        calls: Functions of the host that may be called, by token: the positions of the
            variables whose old values each one takes.
        commit: Token of the function that is called at the commit point.
        kept: Variables whose old values are kept before the step; None if the step may
            write at any time.
        releases: Tensors that leave, and the ops that take their memory.
        footprints: Memory of ops, by device.
        most: Bytes that may live at once, by device.
    """

    calls: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    commit: str = ""
    kept: frozenset[int] | None = None
    releases: Sequence[tuple[str, str]] = ()
    footprints: Mapping[str, Mapping[str, Footprint]] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The outcome of a proof.

    Args:
        failed: The first value, edge or moment that is not proved; empty if all are.
        laws: Names of the laws that were used.
        bytes_failed: The moment at which bytes are not proved; empty if all are.
        most: Bytes that live at once at most, by device.
    """

    failed: str = ""
    laws: tuple[str, ...] = ()
    bytes_failed: str = ""
    most: Mapping[str, int] = field(default_factory=dict[str, int])

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
    gc.disable()  # a collection would go through TensorFlow and Keras
    try:
        first, last = Graph(before), Graph(after)
        found = Values(last, table, Values(first, table))
        found.compare()
        _check_effects(found, promise)
        check_copies(last)
        check_releases(last, promise.releases)
        if promise.kept is not None:
            check_writes(found, promise.calls, promise.kept, promise.commit)
    except Refuted as error:
        return Proof(failed=str(error), laws=tuple(table.laws))
    except (
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # TensorFlow may refuse it too
        return Proof(failed=f"the graph cannot be read: {error!r}")
    finally:
        if collects:
            gc.enable()
    most, failed = dict[str, int](), ""
    for device, limit in promise.most.items():
        most[device], at = find_most(last, promise.footprints[device], limit)
        if most[device] > limit:
            failed = f"up to {most[device]} of {limit} live at once at {at!r}"
    return Proof(laws=tuple(table.laws), bytes_failed=failed, most=most)


def _check_effects(values: Values, promise: Promise) -> None:
    """Check that new effects were promised, and take what they say.

    Raises:
        Refuted: Names the first effect.
    """
    for node in values.new_effects():
        token = node.proto.attr["token"].s.decode() if node.op == "PyFunc" else ""
        if node.op not in _HARMLESS and token not in promise.calls:
            raise Refuted(f"effect {node.name!r} is new")
        for read, variable in zip(
            node.reads, promise.calls.get(token, ()), strict=False
        ):
            if values.of(read) != values.table.number("initial", variable):
                raise Refuted(f"undo copy {read[0]!r} has not its variable's old value")
