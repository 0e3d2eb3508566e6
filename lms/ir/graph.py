"""A training step as plain data: ops, their tensors, and each tensor's readers.

`GraphView` is what planners and simulators see. It knows no framework:
`lms/tf/lowering.py` fills it from TensorFlow's graph, tests from hand-drawn examples.

Assumptions
    - Ops are listed in a valid execution order (every input is made before it is
      read). A loop's back edges are left out: its ops are marked `fixed`.
    - Several tensors may share one buffer (`Op.alias`): memory is counted per
      buffer, and a buffer is named after the tensor that made it, its root.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

__all__ = ["GraphView", "Op", "Tensor", "op_of", "per_graph"]

P = ParamSpec("P")
T = TypeVar("T")
_OnGraph: TypeAlias = Callable[Concatenate["GraphView", P], T]


def op_of(tensor_name: str) -> str:
    """Return the name of the op that makes a tensor.

    Example:
        >>> op_of("conv/Conv3D:0")
        'conv/Conv3D'
    """
    return tensor_name.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One output of an op.

    Args:
        name: `op name:output index`.
        size: Bytes in the device's allocator; 0 when it lives elsewhere and no op on
            the device reads it.
        shape: Its static shape, `()` for a scalar.
        dtype: Its element type by name, such as `float32`.
    """

    name: str
    size: int
    shape: tuple[int, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op of the step.

    Args:
        name: Unique in its graph.
        type: The operation, such as `Conv3D`.
        inputs: Names of the tensors it reads, in order.
        controls: Names of the ops that must end before it starts.
        outputs: The tensors it makes.
        scratch: Bytes that it needs only while it runs, the most at once beside its
            outputs.
        asks: What it asks for while it runs, in order. n > 0 is a chunk of scratch of n
            bytes, -k gives back the k-th chunk, and 0 is the next output that has bytes
            (no request where the output is written over an input). The op's end gives
            back all other scratch. Empty without scratch, and where not known.
        flops: Floating-point operations; 0 for an op bound by memory bandwidth.
        alias: Name of the input whose buffer all outputs share, or None.
        inplace: Whether its largest output may reuse the buffer of an input without a
            later reader (as for TensorFlow's element-wise ops).
        persistent: Whether its outputs live outside of the step (variables,
            constants, arguments): they take no memory of the step and never move.
        fixed: Whether it is part of a loop or branch: it is never ordered, and its
            inputs and outputs never move.
        repeatable: Whether it may be recomputed: it has no state, and equal inputs
            give equal bits.
        cheap: Whether it takes about as long as a copy of its inputs and outputs.
        writes: Names of the tensors (handles) of the variables that it writes, or that
            a loop or branch behind it writes.
        constant: Whether its outputs are constants, which TensorFlow keeps as long as
            the program exists.
        reads_state: Whether its output is the variable's buffer itself: a reader keeps
            the old value alive when the variable gets a new one.
        replaces_state: Whether its second input becomes, without a copy, the value of
            the variable that it writes.
        varies: Whether the shapes of its outputs depend on values: their sizes are
            upper bounds, and it is never recomputed.
        from_host: Whether its outputs are received from the host: they never move.
        from_card: Whether outputs that are `from_host` come from another card instead,
            and may move.
        to_host: Whether TensorFlow copies an output to the host, and frees it some time
            after the copy: all outputs stay until the step's end.
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    scratch: int = 0
    asks: tuple[int, ...] = ()
    flops: int = 0
    alias: str | None = None
    inplace: bool = False
    persistent: bool = False
    fixed: bool = False
    repeatable: bool = False
    cheap: bool = False
    writes: tuple[str, ...] = ()
    constant: bool = False
    reads_state: bool = False
    replaces_state: bool = False
    varies: bool = False
    from_host: bool = False
    from_card: bool = False
    to_host: bool = False

    @property
    def reusing(self) -> Tensor | None:
        """The output that may be written into a dying input: the largest, if any."""
        if not self.inplace or not self.outputs:
            return None
        return max(self.outputs, key=lambda tensor: tensor.size)


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """The ops of one step in a valid execution order.

    Args:
        ops: The ops; every input is made by an earlier op.
        results: Names of the tensors that outlive the step (its return values).

    Raises:
        ValueError: If two ops share a name, or an op reads what no earlier op made.

    Example:
        >>> graph = GraphView(
        ...     ops=(
        ...         Op(name="a", type="A", outputs=(Tensor(name="a:0", size=8),)),
        ...         Op(name="b", type="B", inputs=("a:0",)),
        ...     )
        ... )
        >>> [op.name for op in graph.consumers["a:0"]]
        ['b']
    """

    ops: tuple[Op, ...]
    results: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        made: set[str] = set()
        done: set[str] = set()
        for op in self.ops:
            if op.name in done:
                raise ValueError(f"`ops` must have unique names, got {op.name!r} twice")
            missing = [name for name in op.inputs if name not in made]
            missing += [name for name in op.controls if name not in done]
            if missing:
                raise ValueError(
                    "`ops` must be listed after their inputs, "
                    f"got {op.name!r} before {missing[0]!r}"
                )
            done.add(op.name)
            made.update(tensor.name for tensor in op.outputs)
        missing = [name for name in self.results if name not in made]
        if missing:
            raise ValueError(f"`results` must be tensors of the graph, got {missing}")

    @cached_property
    def memo(self) -> dict[object, deque[tuple[object, Any]]]:
        """Results of `per_graph` functions, dropped with the graph."""
        return {}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of the ops."""
        return tuple(op.name for op in self.ops)

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Position of each op in the order, by its name."""
        return {name: i for i, name in enumerate(self.order)}

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        """Ops by their names."""
        return {op.name: op for op in self.ops}

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by their names."""
        return {tensor.name: tensor for op in self.ops for tensor in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Op, ...]]:
        """Readers of each tensor, in execution order, each once."""
        readers: dict[str, dict[str, Op]] = defaultdict(dict)
        for op in self.ops:
            for name in op.inputs:
                readers[name][op.name] = op
        return {
            name: tuple(readers[name].values()) if name in readers else ()
            for name in self.tensors
        }

    @property
    def constant_bytes(self) -> int:
        """Bytes of the graph's constants, which stay on the device between steps."""
        return sum(made.size for op in self.ops if op.constant for made in op.outputs)

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """The root of each tensor: the tensor whose op made the shared buffer."""
        roots: dict[str, str] = {}
        for op in self.ops:
            source = roots[op.alias] if op.alias is not None else None
            for tensor in op.outputs:
                roots[tensor.name] = source or tensor.name
        return roots

    def reordered(self, names: Iterable[str]) -> "GraphView":
        """Return the graph with its ops in another execution order.

        Raises:
            ValueError: If the order is no execution order of these ops.
        """
        order = tuple(names)
        if order == self.order:
            return self  # with its memo
        unknown = [name for name in order if name not in self.by_name]
        if unknown:
            raise ValueError(f"`names` must be ops of the graph, got {unknown[0]!r}")
        ops = tuple(self.by_name[name] for name in order)
        if len(ops) != len(self.ops):
            raise ValueError(
                f"`names` must list all {len(self.ops)} ops, got {len(ops)}"
            )
        return GraphView(ops=ops, results=self.results)


def per_graph(most: int | None = None) -> Callable[[_OnGraph[P, T]], _OnGraph[P, T]]:
    """Make a decorator that caches a function's results with its first argument.

    Args:
        most: The most results that are cached for a graph, the latest; None for all.

    Example:
        >>> count = per_graph()(lambda graph: print("counts") or len(graph.ops))
        >>> graph = GraphView(ops=())
        >>> count(graph), count(graph)
        counts
        (0, 0)
    """

    def decorate(function: _OnGraph[P, T]) -> _OnGraph[P, T]:
        @wraps(function)
        def cached(graph: GraphView, *args: P.args, **knobs: P.kwargs) -> T:
            known = graph.memo.setdefault(function, deque(maxlen=most))
            for given, result in known:
                if given == (args, knobs):
                    return result
            known.append(((args, knobs), function(graph, *args, **knobs)))
            return known[-1][1]

        return cached

    return decorate
