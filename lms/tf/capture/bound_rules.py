"""Upper bounds of output shapes, by an op's type and inputs.

Each rule is sound: no values make an axis of an output longer than its bound. `ops.py`
says which op has which rule; an op without a rule has no bound.

Sources: the shape functions in tensorflow/core/ops.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.capture.bound_values import (
    Shape,
    UnboundedError,
    Values,
    attribute,
    is_open,
    known,
    known_shape,
    pairwise,
)
from lms.tf.capture.ops import BOUNDS, RESERVED, having
from lms.tf.nodes import data_of, full_name, index_of, source_of

__all__ = ["Shapes"]

# Ops whose outputs have at most as many elements as one input, and its index.
_PARTS_OF = dict.fromkeys(having("part"), 0) | dict.fromkeys(having("part1"), 1)

# Elements kept on the device for each unit and step; bytes kept on the host.
_RESERVED_EACH, _ALGORITHM = 16, 64


class Shapes:
    """Bounds shapes by rules: methods with the names that `ops.BOUNDS` gives.

    A rule gets a node and the index of an output, or of the input that it looks at.

    Args:
        ordered: Nodes, each after its inputs.
        specs: Types and shapes of all outputs; open shapes may be filled in.
    """

    def __init__(
        self,
        ordered: Sequence[compat.NodeDef],
        specs: Mapping[str, list[tf.TensorSpec]],
    ) -> None:
        self.specs = dict(specs)
        self.nodes = {node.name: node for node in ordered}
        self._values = Values(self.nodes, self._of)
        self._flat: set[str] = set()  # tensors of which only the elements are bounded

    def bound(self, node: compat.NodeDef, i: int) -> Shape | None:
        """Return the bound of an op's open output by its index, or None."""
        if not is_open(self.specs[node.name][i]):
            return None
        partial = _partial(self.specs[node.name][i])
        try:
            found = self._by_rule(node, i)
        except UnboundedError:
            return self._by_elements(node, i, partial)
        if partial is None:
            return found
        if len(found) != len(partial):
            return None
        return tuple(b if p is None else p for p, b in zip(partial, found, strict=True))

    def _by_rule(self, node: compat.NodeDef, i: int) -> Shape:
        if node.op not in BOUNDS:
            raise UnboundedError
        rule, *at = BOUNDS[node.op].split()
        return known(getattr(self, f"_{rule}")(node, int(at[0]) if at else i))

    def _by_elements(
        self, node: compat.NodeDef, i: int, partial: Sequence[int | None] | None
    ) -> Shape | None:
        """Bound the one open axis, or all axes as one, by the elements of an input."""
        part = _PARTS_OF.get(node.op)
        read = None if part is None else self._elements(node.input[part])
        if read is None:
            return None
        most = math.prod(max(1, size) for size in read)
        if partial is None:
            self._flat.add(f"{node.name}:{i}")
            return (most,)
        if partial.count(None) != 1:
            return None
        row = math.prod(size for size in partial if size is not None)
        rows = most // row if row else 0
        return tuple(rows if size is None else size for size in partial)

    def _elements(self, name: str) -> Shape | None:
        """Return a tensor's bound; of a flat tensor, a shape of one axis."""
        return known_shape(self.specs[source_of(name)][index_of(name)])

    def _of(self, name: str) -> Shape | None:
        return None if full_name(name) in self._flat else self._elements(name)

    def _like(self, node: compat.NodeDef, at: int) -> Shape:
        """Return the bound of the input at a position."""
        return known(self._of(node.input[at]))

    def _given(self, node: compat.NodeDef, at: int) -> Shape:
        """Return the bound of the numbers in the input at a position."""
        return self._values.most(node.input[at])

    def _constant(self, node: compat.NodeDef, at: int) -> Shape:
        return known(self._values.constant(node.input[at]))

    def _inputs(self, names: Iterable[str]) -> list[Shape]:
        return [known(self._of(name)) for name in names]

    def _broadcast(self, node: compat.NodeDef, _: int) -> Shape:
        """Return the longest of each axis: broadcast axes are equal, or of one."""
        return _largest(self._inputs(data_of(node)))

    def _merge(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return the larger of two branches' shapes, unless they differ in rank."""
        shapes = self._inputs(self._values.branches(node))
        return None if index or len(set(map(len, shapes))) > 1 else _largest(shapes)

    def _tile(self, node: compat.NodeDef, _: int) -> Shape:
        read, times = self._like(node, 0), self._given(node, 1)
        return tuple(size * count for size, count in zip(read, times, strict=True))

    def _cut(self, node: compat.NodeDef, _: int) -> Shape:
        """Return the requested sizes, each at most the input's."""
        read, asked = self._like(node, 0), self._values.of(node.input[2])
        return tuple(map(min, read, read if asked is None else asked))

    def _slice(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the input's shape; None if masks change the axes."""
        masks = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
        return None if attribute(node, *masks) else self._like(node, 0)

    def _suppressed(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Return one number for each requested box; None for counts of boxes."""
        return self._given(node, 2) if index < 1 + node.op.endswith("V5") else None

    def _where(self, node: compat.NodeDef, _: int) -> Shape:
        read = self._like(node, 0)
        return (math.prod(read), len(read))

    def _unique(self, node: compat.NodeDef, _: int) -> Shape | None:
        read = self._like(node, 0)
        return read if len(read) == 1 else None

    def _range(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Bound a range by its limit: starts are at least 0, steps at least 1."""
        self._given(node, 0)  # bounds are of numbers of at least 0
        limit = self._given(node, 1)
        return limit if self._constant(node, 2)[0] > 0 else None

    def _segments(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return one row for each segment."""
        data, ids = self._like(node, 0), self._like(node, 1)
        count = self._given(node, 2)
        return (*count, *data[len(ids) :]) if len(count) == 1 else None

    def _sorted_segments(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return the data's shape: ids of `Unique` give at most as many rows."""
        name = node.input[1]
        source = self.nodes.get(source_of(name))
        while source is not None and source.op in ("Identity", "Cast"):
            name = source.input[0]
            source = self.nodes.get(source_of(name))
        numbered = source is not None and source.op in ("Unique", "UniqueWithCounts")
        return self._like(node, 0) if numbered and name.endswith(":1") else None

    def _gather(self, node: compat.NodeDef, _: int) -> Shape | None:
        params, ids = self._like(node, 0), self._like(node, 1)
        at = self._constant(node, 2)[0] % len(params)
        batch = attribute(node, "batch_dims")
        return None if batch < 0 else (*params[:at], *ids[batch:], *params[at + 1 :])

    def _rows_of(self, node: compat.NodeDef, _: int) -> Shape | None:
        """Return a row for each index; TensorFlow inferred the row's shape."""
        ids, shape = self._like(node, 1), _partial(self.specs[node.name][0])
        axes = len(ids) - (node.op in ("GatherNd", "ResourceGatherNd"))
        if shape is None or attribute(node, "batch_dims") or None in shape[axes:]:
            return None
        return (*ids[:axes], *(size or 0 for size in shape[axes:]))

    def _concat(self, node: compat.NodeDef, _: int) -> Shape | None:
        names = data_of(node)[:-1]
        shapes, axis = self._inputs(names), self._constant(node, len(names))
        if len(set(map(len, shapes))) > 1:
            return None
        largest = _largest(shapes)
        at = axis[0] % len(largest)
        total = sum(shape[at] for shape in shapes)
        return (*largest[:at], total, *largest[at + 1 :])

    def _gathered(self, node: compat.NodeDef, _: int) -> Shape:
        """Return the rows of all devices, which have equally many."""
        ((rows, *rest),) = self._inputs(node.input[:1])
        (size,) = self._constant(node, 1)
        return (rows * size, *rest)

    def _pack(self, node: compat.NodeDef, _: int) -> Shape:
        names = data_of(node)
        each = _largest(self._inputs(names))
        at = attribute(node, "axis") % (len(each) + 1)
        return (*each[:at], len(names), *each[at:])

    def _transpose(self, node: compat.NodeDef, _: int) -> Shape:
        read = self._like(node, 0)
        return tuple(read[i] for i in self._constant(node, 1))

    def _reduce(self, node: compat.NodeDef, _: int) -> Shape | None:
        read, axes = self._like(node, 0), self._values.constant(node.input[1])
        keeps = attribute(node, "keep_dims")
        if axes is None:
            return tuple(max(1, size) for size in read) if keeps else None
        gone = {i % len(read) for i in axes}
        if keeps:
            return tuple(1 if i in gone else size for i, size in enumerate(read))
        return tuple(size for i, size in enumerate(read) if i not in gone)

    def _product(self, node: compat.NodeDef, _: int) -> Shape:
        """Return the shape of a product of two matrices, or of two batches."""
        left, right = self._like(node, 0), self._like(node, 1)
        rows = left[-1 if attribute(node, "transpose_a", "adj_x") else -2]
        columns = right[-2 if attribute(node, "transpose_b", "adj_y") else -1]
        return (*_largest([left[:-2], right[:-2]]), rows, columns)

    def _entropy(self, node: compat.NodeDef, index: int) -> Shape:
        """Return one loss for each row; for the gradient, the shape of the logits."""
        logits = self._like(node, 0)
        return logits if index else logits[:1]

    def _recurrent(self, node: compat.NodeDef, index: int) -> Shape | None:
        """Bound cuDNN's reserve for gradients of recurrent layers, device or host.

        cuDNN says the true size when it runs; `lms.tf.measure.scratch` measures it
        where memory suffices. An LSTM keeps four gates, the state and its tangent for
        each unit and step: about half of this bound.
        """
        read, state = self._like(node, 0), self._like(node, 1)
        if index != RESERVED:
            return None if index < RESERVED else (_ALGORITHM,)
        steps = read[0 if attribute(node, "time_major") else 1]
        return (_RESERVED_EACH * steps * math.prod(state),)

    def _most_axes(self, *_: Any) -> Shape:
        """Bound the length of a shape: no kernel takes more than 32 axes."""
        return (32,)


def _largest(shapes: Sequence[Shape]) -> Shape:
    """Return the longest of each axis, aligned at the last."""
    rank = max(map(len, shapes), default=0)
    return pairwise(max, ((1,) * (rank - len(shape)) + shape for shape in shapes))


def _partial(spec: tf.TensorSpec) -> list[int | None] | None:
    """Return a shape with None for open axes; None if the rank is open."""
    return None if spec.shape.rank is None else spec.shape.as_list()
