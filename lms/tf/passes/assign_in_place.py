"""Assign large variables in place: copy a new value into the old value's memory.

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

from collections.abc import Mapping, Sequence

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.op_facts import READS_VARIABLES
from lms.tf.nodes import source_of

__all__ = ["NOTHING", "PLACED", "with_assignments_in_place"]

# Name suffixes of ops whose output lies in a variable's memory, and of ops whose output
# is empty, which shape inference must not know.
PLACED, NOTHING = "/lms_placed", "/lms_nothing"

# Variables below 4 KiB are left out: the allocator keeps chunks for small tensors.
_LEAST = 4 * 1024

_TYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def with_assignments_in_place(
    nodes: Sequence[compat.NodeDef], variables: Mapping[str, tf.TensorSpec]
) -> list[compat.NodeDef]:
    """Return the nodes with assignments of large variables that copy in place.

    Left out are variables that several ops write, and variables that an op gathers rows
    of: TensorFlow copies the latter at each read.

    Args:
        nodes: The step's nodes.
        variables: Types and shapes of variables by the names of their handles' nodes.
    """
    written, in_pieces = dict[str, int](), set[str]()
    for node in nodes:
        for name in {source_of(name) for name in node.input} & variables.keys():
            if node.op not in READS_VARIABLES:
                written[name] = written.get(name, 0) + 1
            elif "Gather" in node.op:
                in_pieces.add(name)
    once = {name for name, count in written.items() if count == 1} - in_pieces
    large = {name for name in once if _is_large(variables[name])}
    there = {node.name for node in nodes}
    changed: list[compat.NodeDef] = []
    for node in nodes:
        if node.op == "AssignVariableOp" and source_of(node.input[0]) in large:
            made = source_of(node.input[1])  # arguments exist from the start
            changed += _in_place(node, [f"^{made}"] if made in there else [])
        else:
            changed.append(node)
    return changed


def _is_large(spec: tf.TensorSpec) -> bool:
    if spec.dtype not in _TYPES or not spec.shape.is_fully_defined():
        return False
    return spec.shape.num_elements() * spec.dtype.size >= _LEAST


def _in_place(node: compat.NodeDef, value_made: Sequence[str]) -> list[compat.NodeDef]:
    """Return the nodes that replace an assignment, the assignment itself last."""
    handle, value, *controls = node.input
    dtype = tf.as_dtype(compat.attribute(node, "dtype").type)

    def made(name: str, op: str, inputs: Sequence[str], key: str) -> compat.NodeDef:
        types, name = {key: dtype}, f"{node.name}{name}"
        return compat.made_node(name, op, inputs, node.device, **types)

    first = compat.constant(f"{node.name}/lms_first", 0, tf.int32, node.device)
    no = compat.constant(f"{node.name}/lms_no", [False], tf.bool, node.device)
    empty = compat.constant(f"{node.name}/lms_empty", [], dtype, node.device)
    nothing = made(NOTHING, "PlaceholderWithDefault", [empty.name], "dtype")
    nothing.attr["shape"].shape.unknown_rank = True
    read = made("/lms_read", "ReadVariableOp", [handle, *controls], "dtype")
    emptied = made(
        "/lms_emptied",
        "AssignVariableOp",
        [handle, nothing.name, f"^{read.name}", *value_made],
        "dtype",
    )
    # The condition has one row: by a scalar one `Select` forwards its choice uncopied.
    old = made("/lms_old", "ExpandDims", [read.name, first.name], "T")
    new = made("/lms_new", "ExpandDims", [value, first.name], "T")
    for row in (old, new):
        row.attr["Tdim"].type = tf.int32.as_datatype_enum
    rows = [no.name, old.name, new.name, f"^{emptied.name}"]
    placed = made(PLACED, "Select", rows, "T")
    whole = made("/lms_whole", "Squeeze", [placed.name], "T")
    whole.attr["squeeze_dims"].list.i.append(0)
    assigned = compat.copied(node)
    assigned.input[1] = whole.name
    assigned.attr["validate_shape"].b = False
    return [
        *(first, no, empty, nothing, read, emptied),
        *(old, new, placed, whole, assigned),
    ]
