"""Ends of swaps in the graphs that devices get."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["swap_nodes"]

_END = re.compile(r"lms/\d+/.*/(out|in)\d*")


def swap_nodes(graphs: Iterable[Any]) -> dict[str, int]:
    """How many there are in partitions of functions, by end, op and device."""
    ends = Counter[str]()
    for graph in graphs:
        for node in graph.node:
            end = _END.fullmatch(node.name)
            if end:
                device = node.device.rpartition("device:")[2]
                ends[f"{end[1]} {node.op} {device}"] += 1
    return dict(ends)
