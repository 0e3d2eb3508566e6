"""Tensors that wait in half as many bytes: with other numbers, where the user asks.

    before                          after
    relu ──> next                   relu ──> next
      └────────────> gradient         └──> narrow ~~ waits, moves ~~> wide ──> gradient

Float32 becomes bfloat16 - the same range, 8 bits of precision - after the last near
reader, and float32 again before the first far one. What a planner then keeps or moves
is the narrow tensor. Numbers differ from those of plain training: the only thing in
this library that changes them, so it is off unless it is asked for by name.

Known weakness: only readers that read the tensor itself, not a reshape of it, are
given the wide one; a tensor with others among its far readers stays as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, Tensor, op_of

__all__ = ["NARROW", "WIDE", "Narrowed", "can_be_narrowed", "with_narrowed"]

NARROW, WIDE = "lms/narrow/", "lms/wide/"

_WIDE_DTYPE = "float32"
_BYTES = {"bfloat16": 2, "float16": 2}
_WIDE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """A tensor that waits for its far readers in fewer bytes.

    Args:
        tensor: Its name, of float32.
        readers: Names of the far readers; they read what was narrow.
        dtype: What it waits as: `bfloat16` or `float16`.
    """

    tensor: str
    readers: tuple[str, ...]
    dtype: str


def can_be_narrowed(graph: GraphView, item: Narrowed) -> bool:
    """Whether the tensor is of float32, and its far readers read it directly."""
    tensor = graph.tensors.get(item.tensor)
    readers = {op.name for op in graph.consumers.get(item.tensor, ())}
    return (
        tensor is not None
        and tensor.dtype == _WIDE_DTYPE
        and graph.roots[item.tensor] == item.tensor
        and item.dtype in _BYTES
        and bool(item.readers)
        and readers >= set(item.readers)
        and not graph.by_name[op_of(item.tensor)].varies
        and not any(graph.by_name[name].fixed for name in item.readers)
    )


def with_narrowed(graph: GraphView, narrowed: Sequence[Narrowed]) -> GraphView:
    """The graph in which tensors become narrow, and wide again.

    Args:
        graph: The graph in any execution order.
        narrowed: Which tensors.

    Returns:
        A graph in an execution order; the same one if there are none.

    Raises:
        PlanError: If a tensor cannot be narrowed; names it.

    Example:
        >>> def op(name, *inputs):
        ...     made = (Tensor(name=f"{name}:0", size=8),)
        ...     return Op(name=name, type="T", inputs=inputs, outputs=made)
        >>> ops = op("a"), op("b", "a:0"), op("c", "b:0"), op("d", "c:0", "a:0")
        >>> item = Narrowed(tensor="a:0", readers=("d",), dtype="bfloat16")
        >>> [o.name for o in with_narrowed(GraphView(ops=ops), [item]).ops]
        ['a', 'b', 'lms/narrow/a/0', 'c', 'lms/wide/a/0', 'd']
    """
    if not narrowed:
        return graph
    units = _Units(graph)
    renamed: dict[str, dict[str, str]] = {}  # far reader -> tensors under other names
    for item in narrowed:
        if not can_be_narrowed(graph, item):
            raise PlanError(
                f"{item.tensor!r} must be a float32 tensor that {item.readers} read "
                f"directly, to wait as {item.dtype!r}"
            )
        narrow, wide = _casts(graph, item)
        near = {op.name for op in graph.consumers[item.tensor]} - set(item.readers)
        units.put_after((op_of(item.tensor), *near), narrow)
        units.put_before(item.readers, wide)
        for reader in item.readers:
            renamed.setdefault(reader, {})[item.tensor] = wide.outputs[0].name
    ops = (_reading(op, renamed.get(op.name, {})) for op in units.ops())
    return GraphView(ops=tuple(ops), results=graph.results)


def _casts(graph: GraphView, item: Narrowed) -> tuple[Op, Op]:
    source = graph.tensors[item.tensor]
    suffix = item.tensor.replace(":", "/")
    size = source.size * _BYTES[item.dtype] // _WIDE_BYTES
    narrow = replace(source, name=f"{NARROW}{suffix}:0", size=size, dtype=item.dtype)
    wide = replace(source, name=f"{WIDE}{suffix}:0")
    return _cast(source, narrow), _cast(narrow, wide)


def _cast(source: Tensor, made: Tensor) -> Op:
    return Op(
        name=op_of(made.name), type="Cast", inputs=(source.name,), outputs=(made,)
    )


def _reading(op: Op, renamed: dict[str, str]) -> Op:
    if not renamed:
        return op
    inputs = tuple(renamed.get(tensor, tensor) for tensor in op.inputs)
    alias = None if op.alias is None else renamed.get(op.alias, op.alias)
    return replace(op, inputs=inputs, alias=alias)


class _Units:
    """The ops, those of one group as neighbours, with others put between."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for i, op in enumerate(graph.ops):
            self._first.setdefault(op.group or op.name, i)
            self._last[op.group or op.name] = i
        self._before: dict[int, list[Op]] = {}
        self._after: dict[int, list[Op]] = {}

    def put_before(self, names: Iterable[str], op: Op) -> None:
        """Put an op before the first of some."""
        at = min(self._first[self._unit(name)] for name in names)
        self._before.setdefault(at, []).append(op)

    def put_after(self, names: Iterable[str], op: Op) -> None:
        """Put an op after the last of some."""
        at = max(self._last[self._unit(name)] for name in names)
        self._after.setdefault(at, []).append(op)

    def ops(self) -> Iterable[Op]:
        """All of them in an execution order."""
        for i, op in enumerate(self._graph.ops):
            yield from self._before.get(i, ())
            yield op
            yield from self._after.get(i, ())

    def _unit(self, name: str) -> str:
        op = self._graph.by_name[name]
        return op.group or op.name
