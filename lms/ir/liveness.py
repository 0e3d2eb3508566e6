"""Live intervals of buffers, and the memory that they take.

A buffer is live from the op that makes it to the last op that reads it (or any
alias of it), both included: `[producer, last use + 1)` as a half-open interval of
positions, counted from 0. The classic liveness analysis of compilers (Aho, Lam,
Sethi, Ullman, *Compilers*, section 9.2.5), with two facts of tensor runtimes added:
outputs and inputs of one op are live together, and an element-wise op may write its
output into an input that dies there (TensorFlow's `forward_input`).

Known weakness: the allocator's rounding and fragmentation are not modelled here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import accumulate

from lms.ir.graph import GraphView, Op, op_of, per_graph

__all__ = ["Buffer", "Residency", "buffers", "bytes_in_use", "lower_bound"]
__all__ += ["memory_curve", "new_value", "old_readers", "old_values", "peak"]
__all__ += ["staying", "with_late_writes", "working_sets", "written_over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A piece of device memory of the step and its live interval.

    Args:
        root: Name of the tensor that made it.
        size: Bytes.
        producer: Position of the op that makes it.
        uses: Positions of the ops that read its contents, ascending. Alias ops
            (reshapes) read no contents and are not among them.
        pinned: Whether it must stay: it outlives the step, a loop or branch touches
            it, or it comes from the host.
        kept: Whether it outlives the step.
    """

    root: str
    size: int
    producer: int
    uses: tuple[int, ...]
    pinned: bool = False
    kept: bool = False

    @property
    def last(self) -> int:
        """Position of the last op that needs the buffer."""
        return self.uses[-1] if self.uses else self.producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Span of positions in which one copy of a buffer is on the device.

    Args:
        root: Name of the buffer's root tensor.
        start: First position at which it holds memory.
        end: First position at which its memory is free.
        size: Bytes.
        dies_at: Position of the op that reads it last and may write over it, or None.
    """

    root: str
    start: int
    end: int
    size: int
    dies_at: int | None


@per_graph()
def buffers(graph: GraphView) -> tuple[Buffer, ...]:
    """Return the step's own buffers, in the order in which they are made.

    Persistent tensors and tensors of no bytes are left out.
    """
    roots, tensors = graph.roots, graph.tensors
    uses: dict[str, dict[int, None]] = {}
    pinned: set[str] = set()
    made: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        for name in op.inputs:
            root = roots[name]
            if op.fixed:
                pinned.add(root)
            if op.alias is None or op.fixed:
                uses.setdefault(root, {})[position] = None
        if op.persistent:
            continue
        for tensor in op.outputs:
            if roots[tensor.name] == tensor.name and tensor.size > 0:
                made[tensor.name] = position
                if op.fixed or (op.from_host and not op.from_card):
                    pinned.add(tensor.name)
    kept = {roots[name] for name in graph.results}
    kept |= {root for root in made if graph.by_name[op_of(root)].to_host}
    return tuple(
        Buffer(
            root=root,
            size=tensors[root].size,
            producer=position,
            uses=tuple(uses.get(root, ())),
            pinned=root in pinned or root in kept,
            kept=root in kept,
        )
        for root, position in made.items()
    )


@per_graph()
def staying(graph: GraphView) -> tuple[Residency, ...]:
    """Return the residencies of all buffers, in their order, if none moves."""
    return tuple(
        Residency(
            root=buffer.root,
            start=buffer.producer,
            end=len(graph.ops) if buffer.kept else buffer.last + 1,
            size=buffer.size,
            dies_at=None if buffer.kept or not buffer.uses else buffer.last,
        )
        for buffer in buffers(graph)
    )


def written_over(
    op: Op, roots: Mapping[str, str], dying: Mapping[str, int]
) -> tuple[str, str] | None:
    """Return (the op's largest output, the dying input that it reuses), if it does.

    Of several buffers the first of the op's inputs is reused (TensorFlow's
    `forward_input_or_allocate_output`, op_kernel.cc). `dying` are the sizes, by their
    roots, of the input buffers without a later reader.

    Example:
        >>> from lms.ir.graph import Tensor
        >>> made = (Tensor(name="add:0", size=8),)
        >>> inputs = ("a:0", "b:0")
        >>> add = Op(name="add", type="Add", inputs=inputs, outputs=made, inplace=True)
        >>> same = {"a:0": "a:0", "b:0": "b:0"}
        >>> written_over(add, same, {"b:0": 8, "a:0": 8})
        ('add:0', 'a:0')
    """
    made = op.reusing
    if made is None:
        return None
    for name in op.inputs:
        if dying.get(roots[name]) == made.size:
            return made.name, roots[name]
    return None


def _reused_bytes(op: Op, roots: Mapping[str, str], dying: Mapping[str, int]) -> int:
    """Return the bytes that an op saves by reusing a dying input for its output."""
    found = written_over(op, roots, dying)
    return 0 if found is None else dying[found[1]]


def new_value(op: Op) -> str | None:
    """Return the tensor that becomes a variable's value without a copy; else None.

    The variable's old buffer is free then.
    """
    return op.inputs[1] if op.replaces_state and op.writes else None


@per_graph()
def memory_curve(graph: GraphView) -> list[int]:
    """Return the bytes of the step in use while each op runs, without swaps.

    Live buffers and the op's scratch count, less the bytes that it writes in place.
    """
    return bytes_in_use(graph.ops, graph.roots, staying(graph))


def bytes_in_use(
    ops: Sequence[Op], roots: Mapping[str, str], lives: Sequence[Residency]
) -> list[int]:
    """Return the bytes in use while each op runs, as in `memory_curve`.

    Positions of the residencies are those of `ops`.
    """
    change = [0] * (len(ops) + 1)
    dying: dict[int, dict[str, int]] = defaultdict(dict)
    for life in lives:
        change[life.start] += life.size
        change[life.end] -= life.size
        if life.dies_at is not None:
            dying[life.dies_at][life.root] = life.size
    live = accumulate(change[:-1])
    return [
        used + op.scratch - _reused_bytes(op, roots, dying.get(i, {}))
        for i, (op, used) in enumerate(zip(ops, live, strict=True))
    ]


def old_readers(graph: GraphView) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (position of a writing op, bytes of the old value, positions of readers).

    A variable that is written while its old value is held gets new memory
    (`PrepareToUpdateVariable` in TensorFlow's training_op_helpers.h). Behind the last
    position is the reader of a value that the step returns.

    Known weakness: a call or loop that has a variable counts as writing it.
    """
    ops, roots = graph.ops, graph.roots
    readers: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(ops):
        for root in {roots[name] for name in op.inputs}:
            readers[root].append(position)
    for name in graph.results:
        readers[roots[name]].append(len(ops))
    reads: dict[str, tuple[int, list[int]]] = {}
    for position, op in enumerate(ops):
        if op.reads_state and op.inputs:
            value, variable = op.outputs[0], roots[op.inputs[0]]
            _, so_far = reads.get(variable, (0, []))
            reads[variable] = value.size, so_far + readers[roots[value.name]]
        for handle in op.writes:
            yield position, *reads.pop(roots.get(handle, handle), (0, []))


def old_values(graph: GraphView) -> list[int]:
    """Return the bytes of variables' old values while each op runs.

    `memory_curve` does not count them.
    """
    ops = graph.ops
    change = [0] * (len(ops) + 1)
    for position, size, readers in old_readers(graph):
        end = max(readers, default=0)
        if end > position:  # a new value without a copy is still a buffer here
            change[position + ops[position].replaces_state] += size
            change[min(end + 1, len(ops))] -= size
    return list(accumulate(change[:-1]))


def with_late_writes(graph: GraphView) -> GraphView:
    """Let writes in place wait for readers of old values, unless these need a write.

    Else TensorFlow gives the variable new memory, as `old_readers` says.
    """
    followers: dict[str, list[str]] = defaultdict(list)
    needs = {op.name: [*op.controls, *map(op_of, op.inputs)] for op in graph.ops}
    for name, needed in needs.items():
        for each in needed:
            followers[each].append(name)
    waits: dict[str, tuple[str, ...]] = {}
    place, furthest = graph.position, 0  # all added edges start at most at `furthest`
    for position, _, readers in old_readers(graph):
        writer = graph.ops[position]
        held = [i for i in readers if i < len(graph.ops) and not graph.ops[i].fixed]
        # Loops and calls that only have the variable count as writing it.
        is_own = not (writer.fixed or sum(t.size for t in writer.outputs))
        if writer.replaces_state or not (is_own and held):
            continue
        furthest = max(furthest, *held)
        behind, pending = {writer.name, *needs[writer.name]}, [writer.name]
        while pending:
            new = (n for n in followers[pending.pop()] if place[n] <= furthest)
            new = {*new} - behind
            behind |= new
            pending += new
        found = [name for i in held if (name := graph.ops[i].name) not in behind]
        waits[writer.name] = (*waits.get(writer.name, ()), *found)
        needs[writer.name] += found
        for name in found:
            followers[name].append(writer.name)
    if not any(waits.values()):
        return graph
    ops = map(graph.by_name.__getitem__, TopologicalSorter(needs).static_order())
    late = [replace(o, controls=(*o.controls, *waits.get(o.name, ()))) for o in ops]
    return GraphView(ops=tuple(late), results=graph.results)


def peak(graph: GraphView) -> int:
    """Return the peak of `memory_curve`."""
    return max(memory_curve(graph), default=0)


@per_graph()
def working_sets(graph: GraphView) -> list[int]:
    """Return the bytes that each op needs by itself: inputs, outputs and scratch.

    Aliases (reshapes) need nothing of their own.
    """
    ops, roots = graph.ops, graph.roots
    live = {buffer.root: buffer for buffer in buffers(graph)}
    sets: list[int] = []
    for position, op in enumerate(ops):
        if op.alias is not None:
            sets.append(0)
            continue
        names = dict.fromkeys(roots[name] for name in op.inputs)
        read = [live[root] for root in names if root in live]
        made = sum(t.size for t in op.outputs if t.name in live)
        dying = {b.root: b.size for b in read if b.last == position and not b.kept}
        need = sum(b.size for b in read) + made + op.scratch
        sets.append(need - _reused_bytes(op, roots, dying))
    return sets


def lower_bound(graph: GraphView) -> int:
    """Return the largest working set in bytes: no plan of swaps can need less."""
    return max(working_sets(graph), default=0)
