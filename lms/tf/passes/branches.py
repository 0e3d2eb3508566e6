"""Branches that no step takes are removed, and ops of the others run unconditionally.

    always true ──> Switch ─┬─> gather ────────────────────> Merge
                            └─> pad ──> gather ──> cut ──┘           never runs

    becomes         Identity ──> gather ──> Identity

Ops in branches neither move nor are they recomputed, and their shapes may be unknown.
"""

from collections.abc import Iterator

import tensorflow as tf

from lms.tf import compat
from lms.tf.nodes import Nodes, data_of, full_name, source_of, waits_of
from lms.tf.passes import Pass, Step

__all__ = ["ONE_BRANCH"]

# A branch that holds a loop stays: the loop's Merge reads an op behind it.
_LOOPS = {"Enter", "NextIteration", "Exit"}


def _switches(graph: Nodes, step: Step) -> Iterator[list[compat.NodeDef]]:
    found = [node for node in graph if node.op == "Switch"]
    if switches := [node for node in found if source_of(node.input[1]) in step.taken]:
        yield switches


def _without(graph: Nodes, _: Step, switches: list[compat.NodeDef]) -> None:
    dead = {f"{node.name}:0" for node in switches}  # tensors, and ops that never run
    gone, merges = list[compat.NodeDef](), list[tuple[compat.NodeDef, list[str]]]()
    for node in graph:
        never = {n for n in node.input if full_name(n) in dead or source_of(n) in dead}
        alive = [name for name in node.input if name not in never]
        if never and node.op == "Merge" and {*data_of(node)} - never:
            merges.append((node, alive))
        elif never:
            gone.append(node)
            dead.add(node.name)
    left = [sum(not name.startswith("^") for name in alive) for _, alive in merges]
    if set(left) - {1} or not _LOOPS.isdisjoint(node.op for node in gone):
        return
    for node, alive in merges:
        _hand_on(graph, node, alive)
    for node in reversed(gone):
        graph.remove(node)
    for node in switches:
        graph.redirect({f"{node.name}:1": node.name})
        _hand_on(graph, node, [node.input[0], *waits_of(node)])


def _hand_on(graph: Nodes, node: compat.NodeDef, inputs: list[str]) -> None:
    """Replace a Switch or Merge, which has one input left, by an Identity."""
    if graph.readers(f"{node.name}:1"):  # which input a Merge chose
        chosen = list(node.input).index(inputs[0])
        name = f"{node.name}/lms_chosen"
        number = compat.constant(name, chosen, tf.int32, node.device)
        graph.redirect({f"{node.name}:1": graph.add(number, before=node).name})
    graph.give(node, inputs)
    node.op = "Identity"
    node.attr.pop("N", None)


ONE_BRANCH = Pass(find=_switches, change=_without)
