"""Updates one after the other, so that one gradient at a time is on the device.

gradient ──> update, writes ──> next gradient ──> update, writes ──> ...
"""

from collections.abc import Iterable, Sequence

from lms.tf.capture.graph_edit import GraphEdit

__all__ = ["one_by_one"]


def one_by_one(
    edit: GraphEdit, done: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> None:
    """Let the last source of each update wait for the writes of the update before.

    Where that update needs what this one begins with, nothing waits: such is a
    gradient of which all others take the norm.

    Args:
        edit: The step.
        done: Of each update the ops that it begins with, and its writes.
    """
    members: dict[str, list[str]] = {}
    for op in edit.ops.values():
        if op.group is not None:
            members.setdefault(op.group, []).append(op.name)
    before: Sequence[str] = ()
    pairs = [([n for n in names if n in edit.ops], writes) for names, writes in done]
    for sources, writes in sorted(
        (pair for pair in pairs if pair[0]),
        key=lambda pair: edit.rank[pair[0][-1]],
    ):
        last = edit.ops[sources[-1]]
        together = members[last.group] if last.group is not None else [last.name]
        needed = edit.ancestors(before) if before else set[str]()
        may_wait = not (last.persistent or last.fixed or needed.intersection(together))
        if may_wait and before:
            for name in together:
                edit.wait(name, before)
        before = writes
