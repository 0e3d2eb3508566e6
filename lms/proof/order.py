"""Order: what must come first does so in every order that edges and streams allow.

TensorFlow's rules, by which an edge of the graph orders kernels and copies:

    edges    A node starts when all nodes that it reads or waits for have ended
             (executor.cc). A kernel of a GPU has ended when it is queued: kernels of a
             device run in the order of one stream. A swap copy has ended when its bytes
             are there: `done` is called behind the copy (gpu_swapping_kernels.cc).
    streams  A copy to the host waits on its stream for all kernels queued before; so
             does a copy to the device, which takes memory that kernels have left
             (`CopyGPUTensorToCPU`, `CopyCPUTensorToGPU` in gpu_util.cc).
    memory   An executor drops a tensor when its last reader has ended. Later kernels of
             the stream may write there; copies hold their tensors until `done`.

So three things are left to prove: copies read what lies where they read, memory is
released after its last reader, and each write can be undone or comes last.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lms.proof.nodes import Graph, Node, Refuted, Tensor, split
from lms.proof.values import COPY_IN, COPY_OUT, VIEWS, Values

__all__ = ["Promise", "check_copies", "check_releases", "check_writes"]


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
    footprints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict[str, int])


def check_copies(graph: Graph) -> None:
    """Check that tensors of the host are read by copies back, or on the host.

    Raises:
        Refuted: Names the first reader.
    """
    for node in graph.nodes:
        for i, (source, output) in enumerate(node.reads):
            maker = graph.by_name.get(source)
            is_there = maker is not None and (
                maker.op == COPY_OUT or output in _places(maker, "_output_hostmem")
            )
            on_host = node.op == "PyFunc" or i in _places(node, "_input_hostmem")
            if node.op == COPY_IN and not is_there:
                raise Refuted(f"{node.name!r} copies back {source!r}, which never left")
            if is_there and node.op != COPY_IN and not on_host:
                raise Refuted(f"{node.name!r} reads {source!r} before its copy back")


def check_releases(graph: Graph, promise: Promise) -> None:
    """Check that ops which take a tensor's memory come after all that hold it.

    Raises:
        Refuted: Names the first holder that may come later.
    """
    for tensor, name in promise.releases:
        taker = graph.by_name[name]
        for holder in _holders(graph, split(tensor)):
            if holder is not taker and not graph.is_first(holder, taker):
                said = f"{name!r} takes the memory of {tensor!r}, which {holder.name!r}"
                raise Refuted(f"{said} may still hold")


def check_writes(values: Values, promise: Promise) -> None:
    """Check that each write can be undone, or comes after the commit point.

    Raises:
        Refuted: Names the first write.
    """
    graph = values.graph
    hosts = [node for node in graph.nodes if node.op == "PyFunc"]
    tokens = [(node, node.proto.attr["token"].s.decode()) for node in hosts]
    calls, kept = promise.calls, promise.kept
    for variable, bits in values.writes.items():
        for node in graph.members(0 if kept is None or variable in kept else bits):
            told = [token for host, token in tokens if graph.is_first(host, node)]
            if promise.commit not in told and not any(
                variable in calls.get(token, ()) for token in told
            ):
                raise Refuted(f"{node.name!r} may write before the commit point")


def _places(node: Node, key: str) -> Sequence[int]:
    return node.proto.attr[key].list.i if key in node.proto.attr else ()


def _holders(graph: Graph, tensor: Tensor) -> Iterator[Node]:
    """Yield the readers of a tensor and of its views."""
    for reader in graph.readers.get(tensor, ()):
        yield reader
        if reader.op in VIEWS:
            yield from _holders(graph, (reader.name, 0))
