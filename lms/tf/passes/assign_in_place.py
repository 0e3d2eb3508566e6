"""Assign variables in place: copy a new value into the old value's memory.

    before                          after
    value ──> Assign                Read ──> (^)Assign nothing ──> (^)Select ──> Assign
                                      └───────────────────────────────↑ ↑
                                                               value ───┘

`AssignVariableOp` gives a variable the new value's memory and frees the old memory. So
variables wander: each step leaves other free fragments, and a plan for one step need
not fit into the next.

Here the variable releases its memory first. `Select`, then the only holder of the old
value, writes the new value into that memory. If the old value has another holder (an
array that a callback keeps, a reader that has not run yet), `Select` takes the new
value's memory instead, as `AssignVariableOp` would have. The bits are equal in both
cases, and a held value never changes.

Sources: `AssignVariableOp` in resource_variable_ops.cc, `SelectOp` in
cwise_op_select.cc, `forward_input_or_allocate_output` in op_kernel.cc.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.ops import READS_VARIABLES
from lms.tf.nodes import Nodes, float_bytes, source_of
from lms.tf.passes import Pass, Step
from lms.tf.passes.compiled import OPEN_COMPILED

__all__ = ["ASSIGN_IN_PLACE", "NOTHING", "PLACED"]

# Name suffixes of ops whose output lies in a variable's memory, and of ops whose output
# is empty, which shape inference must not know.
PLACED, NOTHING = "/lms_placed", "/lms_nothing"

# The smallest are left out, 4 KiB together: no large tensor fits in their old places.
_LEFT_OUT = 4 * 1024


def _assignments(graph: Nodes, step: Step) -> Iterator[compat.NodeDef]:
    """Yield assignments of all but the smallest variables.

    Left out are variables that several ops write, and variables that an op gathers rows
    of: TensorFlow copies the latter at each read.
    """
    found: list[tuple[int, compat.NodeDef]] = []
    for handle, spec in step.variables.items():
        users = graph.readers(handle)
        writers = [node for node in users if node.op not in READS_VARIABLES]
        in_pieces = any("Gather" in node.op for node in users)
        if len(writers) == 1 and writers[0].op == "AssignVariableOp" and not in_pieces:
            found.append((float_bytes(spec), writers[0]))
    found.sort(key=itemgetter(0))
    together = accumulate(size for size, _ in found)
    for (size, node), most in zip(found, together, strict=True):
        if size > 0 and most >= _LEFT_OUT:
            yield node


def _in_place(graph: Nodes, _: Step, node: compat.NodeDef) -> None:
    handle, value, *controls = node.input
    value_made = [f"^{source_of(value)}"] if graph.get(value) else []  # no argument
    dtype = tf.as_dtype(compat.attribute(node, "dtype").type)

    def made(name: str, op: str, inputs: Sequence[str], key: str) -> compat.NodeDef:
        types, name = {key: dtype}, f"{node.name}{name}"
        return graph.make(name, op, inputs, node.device, node, **types)

    def given(name: str, value: Any, dtype: tf.DType) -> compat.NodeDef:
        new = compat.constant(f"{node.name}{name}", value, dtype, node.device)
        return graph.add(new, before=node)

    first = given("/lms_first", 0, tf.int32)
    no = given("/lms_no", [False], tf.bool)
    empty = given("/lms_empty", [], dtype)
    nothing = made(NOTHING, "PlaceholderWithDefault", [empty.name], "dtype")
    nothing.attr["shape"].shape.unknown_rank = True
    read = made("/lms_read", "ReadVariableOp", [handle, *controls], "dtype")
    inputs = [handle, nothing.name, f"^{read.name}", *value_made]
    emptied = made("/lms_emptied", "AssignVariableOp", inputs, "dtype")
    # The condition has one row: by a scalar one `Select` forwards its choice uncopied.
    old = made("/lms_old", "ExpandDims", [read.name, first.name], "T")
    new = made("/lms_new", "ExpandDims", [value, first.name], "T")
    for row in (old, new):
        row.attr["Tdim"].type = tf.int32.as_datatype_enum
    rows = [no.name, old.name, new.name, f"^{emptied.name}"]
    placed = made(PLACED, "Select", rows, "T")
    whole = made("/lms_whole", "Squeeze", [placed.name], "T")
    whole.attr["squeeze_dims"].list.i.append(0)
    graph.give(node, [handle, whole.name, *controls])
    node.attr["validate_shape"].b = False


ASSIGN_IN_PLACE = Pass(find=_assignments, change=_in_place, requires=(OPEN_COMPILED,))
