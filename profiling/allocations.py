"""Device memory that a planned step takes, op by op: expected, and logged.

    graph, plan ──expected──> bytes that each op takes ──┐
    profiler ────logged─────> the allocator's events ────┴──> differences

TensorFlow's allocator tells the profiler of each chunk: its bytes, its address, and the
op that asked for it (`AddTraceMe` in bfc_allocator.cc). The plan tells which op takes
which tensors, and after which op each is free. A difference of 64 KiB or more means
that the library has a wrong fact about an op, or is a documented weakness.

Only planned steps are compared: their ops run in one order, so that it is known which
op may write into which memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import written_over
from lms.ir.plan import SwapPlan, resolve
from lms.units import KIB, Bytes
from profiling.spans import Span

__all__ = ["Difference", "Taken", "compare", "expected", "logged"]

_LEAST = 64 * KIB  # bytes; smaller chunks are not compared
_DEVICE_MEMORY = "GPU_"  # allocators of a GPU; `gpu_host_bfc` is the host's
_END = "the step's end"

# Beginnings of the names of ops that take memory for planned addresses.
_OF_ARENA = ("lms/spacer", "Empty")

# The op that TensorFlow logs for a tensor from the host (base_rendezvous_mgr.cc).
_RECEIVED = "SameWorkerRecvDone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Memory that an op takes.

    Args:
        op: The op that asks for it.
        size: Bytes.
        until: The last op before the memory is free; the op itself for scratch.
    """

    op: str
    size: Bytes
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An op whose logged memory differs from the expected memory.

    Args:
        op: The op's name.
        type: The op's type, such as `Conv3D`; empty for an op outside the graph.
        expected: Bytes of the expected chunks, largest first.
        logged: Bytes of the chunks that TensorFlow's allocator logged.
    """

    op: str
    type: str
    expected: tuple[Bytes, ...]
    logged: tuple[Bytes, ...]

    @property
    def missing(self) -> Bytes:
        """Logged bytes minus expected bytes."""
        return sum(self.logged) - sum(self.expected)


def expected(graph: GraphView, plan: SwapPlan) -> list[Taken]:
    """List the memory that a plan's ops should take, in the plan's order.

    Args:
        graph: The graph that the plan is for (`lms.ir.plan.planned_graph`).
        plan: A valid plan.
    """
    resolved = resolve(graph, plan)
    last: dict[int, list[tuple[str, Bytes]]] = defaultdict(list)
    for life in resolved.residencies:
        if life.dies_at is not None:
            last[life.dies_at].append((life.root, life.size))
    ends = [op.name for op in resolved.ops] + [_END]
    position = {op.name: i for i, op in enumerate(resolved.ops)}
    names = _copies(graph, plan)
    found: list[tuple[int, Taken]] = []
    seen: dict[str, int] = defaultdict(int)
    for life in resolved.residencies:
        number = seen[life.root]
        seen[life.root] += 1
        producer = op_of(life.root)
        op = resolved.ops[position[producer]]
        until = ends[life.end] if life.end == len(ends) - 1 else ends[life.end - 1]
        if number:
            taken = Taken(op=names[life.root][number - 1], size=life.size, until=until)
        elif _writes_over(op, life.root, graph, last.get(position[producer], ())):
            continue
        else:
            taken = Taken(op=producer, size=life.size, until=until)
        found.append((life.start, taken))
    for i, op in enumerate(resolved.ops):
        if op.scratch:
            found.append((i, Taken(op=op.name, size=op.scratch, until=op.name)))
    return [taken for _, taken in sorted(found, key=lambda one: one[0])]


def _copies(graph: GraphView, plan: SwapPlan) -> Mapping[str, list[str]]:
    """Map each swapped root to the names that `rewrite` gives its copies back."""
    return {
        graph.roots[swap.tensor]: [
            f"lms/{number}/{op_of(graph.roots[swap.tensor])}/in{k}"
            for k in range(len(swap.swap_ins))
        ]
        for number, swap in enumerate(plan.swaps)
    }


def _writes_over(
    op: Op, root: str, graph: GraphView, dying: Iterable[tuple[str, Bytes]]
) -> bool:
    made = op.reusing
    return (
        made is not None
        and root == made.name
        and written_over(op, graph.roots, dict(dying)) is not None
    )


def logged(spans: Sequence[Span], *, mark: str) -> list[Taken]:
    """List the memory that ops of a recorded step took, in order of allocation.

    Left out are spacers of planned addresses, and the probe of their arena.

    Args:
        spans: Spans of one recorded step, in order (`profiling.spans.read_spans`).
        mark: Name of the step's span.
    """
    (step,) = (span for span in spans if span.name == mark)
    events = [
        span
        for span in spans
        if span.name in ("MemoryAllocation", "MemoryDeallocation")
        and str(span.facts.get("allocator_name", "")).startswith(_DEVICE_MEMORY)
        and step.start <= span.start <= step.end
    ]
    chunks: dict[int, tuple[int, str, Bytes]] = {}
    found: dict[int, Taken] = {}
    running = ""
    for number, event in enumerate(events):
        address = int(event.facts["addr"])
        if event.name == "MemoryAllocation":
            running = str(event.facts.get("tf_op", ""))
            chunks[address] = number, running, int(event.facts["requested_bytes"])
        elif address in chunks:
            begun, op, size = chunks.pop(address)
            found[begun] = Taken(op=op, size=size, until=running)
    for begun, op, size in chunks.values():
        found[begun] = Taken(op=op, size=size, until=_END)
    taken = (found[number] for number in sorted(found))
    return [one for one in taken if not one.op.startswith(_OF_ARENA)]


def compare(
    graph: GraphView,
    plan: SwapPlan,
    spans: Sequence[Span],
    *,
    mark: str,
    least: Bytes = _LEAST,
) -> list[Difference]:
    """Find ops whose memory differs from the expected by `least` bytes or more.

    An op's chunks are added up: some kernels take their scratch in several chunks.

    Args:
        graph: As for `expected`.
        plan: As for `expected`.
        spans: As for `logged`.
        mark: As for `logged`.
        least: Bytes; smaller chunks are left out too.

    Returns:
        Differences, the largest first.
    """
    given = [t.size for op in graph.ops if op.type == "Placeholder" for t in op.outputs]
    types = {op.name: op.type for op in graph.ops}
    wanted = _by_op(expected(graph, plan), least)
    wanted[_RECEIVED] += [size for size in given if size >= least]
    for op in graph.ops:
        if op.from_host:
            wanted[_RECEIVED] += wanted.pop(op.name, [])
    taken = _by_op(logged(spans, mark=mark), least)
    found = [
        Difference(
            op=op,
            type=types.get(op, ""),
            expected=tuple(sorted(wanted[op], reverse=True)),
            logged=tuple(sorted(taken[op], reverse=True)),
        )
        for op in dict.fromkeys([*wanted, *taken])
    ]
    unlike = [one for one in found if abs(one.missing) >= least]
    return sorted(unlike, key=lambda one: -abs(one.missing))


def _by_op(taken: Iterable[Taken], least: Bytes) -> dict[str, list[Bytes]]:
    sizes: dict[str, list[Bytes]] = defaultdict(list)
    for one in taken:
        if one.size >= least:
            sizes[one.op].append(one.size)
    return sizes
