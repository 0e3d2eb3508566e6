"""What shows that tensors left the device: nodes, copies, and the host's memory.

    graphs of devices ──> ends of swaps, sends and receives
    profiler's spans  ──> bytes by direction and kind of memory, peaks of allocators

Sources: tensors on a GPU's way to the host lie in pinned memory (`InferAllocAttr` in
tensorflow/core/common_runtime/graph_view.cc) of the allocator `gpu_host_bfc`
(gpu_process_state.cc); spans of memory are made in bfc_allocator.cc (`AddTraceMe`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lms.simulation.timeline import Lane
from profiling.measured import ObservedCopy
from profiling.spans import Span, copied_bytes

__all__ = ["allocator_peaks", "copied", "swap_nodes"]

_END = re.compile(r"lms/\d+/.*/(out|in)\d*")
_KINDS = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")


def swap_nodes(graphs: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Ends of swaps and transfers in the graphs that devices got.

    Args:
        graphs: Partitions of functions.

    Returns:
        "ends": how many by end, op and device; "transfers": sends by both devices.
    """
    ends, transfers = Counter[str](), Counter[str]()
    for graph in graphs:
        for node in graph.node:
            end = _END.fullmatch(node.name)
            if end:
                ends[f"{end[1]} {node.op} {_short(node.device)}"] += 1
            if node.op in ("_Send", "_HostSend"):
                ways = (node.attr[f"{way}_device"].s.decode() for way in _WAYS)
                transfers[" to ".join(map(_short, ways))] += 1
    return {"ends": dict(ends), "transfers": dict(transfers)}


_WAYS = ("send", "recv")


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


def copied(
    spans: Sequence[Span], copies: Sequence[ObservedCopy], steps: int
) -> dict[str, float]:
    """Bytes that each step copied, by direction and kinds of memory.

    Args:
        spans: Of the profiler; on a GPU all copies are in them.
        copies: Of host stores.
        steps: How many steps were recorded.
    """
    found = Counter[str]()
    for span in spans:
        if span.name in ("MemcpyH2D", "MemcpyD2H"):
            kinds = _KINDS.search(str(span.facts.get("memcpy_details", "")))
            between = f" {kinds[1]} to {kinds[2]}" if kinds else ""
            found[f"{span.name[-3:].lower()}{between}"] += copied_bytes(span)
    for copy in copies:
        found["h2d" if copy.lane is Lane.H2D else "d2h"] += copy.size
    return {name: size / steps for name, size in found.items()}


def allocator_peaks(spans: Sequence[Span]) -> dict[str, int]:
    """The most bytes that each allocator had given out, as the profiler saw it."""
    peaks: dict[str, int] = {}
    for span in spans:
        if span.name == "MemoryAllocation":
            name = str(span.facts.get("allocator_name", ""))
            given = int(span.facts.get("bytes_allocated", 0))
            peaks[name] = max(peaks.get(name, 0), given)
    return peaks
