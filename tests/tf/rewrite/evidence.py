"""Ends of swaps and transfers in the graphs that devices get."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["swap_nodes"]

_END = re.compile(r"lms/\d+/.*/(out|in)\d*")
_WAYS = ("send", "recv")


def swap_nodes(graphs: Iterable[Any]) -> dict[str, dict[str, int]]:
    """How many there are.

    Args:
        graphs: Partitions of functions.

    Returns:
        "ends": by end, op and device; "transfers": sends by both devices.
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


def _short(device: str) -> str:
    return device.rpartition("device:")[2]
