"""Ordered ops wait until room for them was there."""

from itertools import pairwise

import pytest

from lms.ir.graph import GraphView
from lms.units import KIB
from tests.graphs import make_op
from tests.tf.rewrite.test_rewriting import text, traced_step

pytestmark = pytest.mark.tf

#     a ─> b ─> c ─> d       (c and d are one group; d writes in place)
GRAPH = GraphView(
    ops=(
        make_op("a", 64 * KIB),
        make_op("b", 63 * KIB, "a", scratch=65 * KIB),
        make_op("c", 128 * KIB, "b"),
        make_op("d", 64 * KIB + 1, "c", type="Conv2D", scratch=KIB),
        make_op("e", 64 * KIB, "d", type="Relu"),
    )
)
CHAIN = (("a",), ("b",), ("c", "d"), ("e",))

# One shape for each size, in rows of 256 bytes; what is held first is held until the
# last is there, and small tensors and ops that write in place ask for nothing.
ASKING = """
lms/room/shape_256 = Const() on CPU:0
lms/room/shape_260 = Const() on CPU:0
lms/room/shape_512 = Const() on CPU:0
lms/room/shape_257 = Const() on CPU:0
lms/room/a/0 = Empty(lms/room/shape_256) on CPU:0
lms/room/b/0 = Empty(lms/room/shape_260, ^a) on CPU:0
lms/room/c/0 = Empty(lms/room/shape_512, ^b) on CPU:0
lms/room/c/1 = Empty(lms/room/shape_257, ^lms/room/c/0) on CPU:0
lms/room/c/0/held = Identity(lms/room/c/0, ^lms/room/c/1) on CPU:0
"""

WAITING = """
a = Op(^lms/room/a/0) on CPU:0
b = Op(a:0, ^a, ^lms/room/b/0) on CPU:0
c = Op(b:0, ^b, ^lms/room/c/0, ^lms/room/c/1, ^lms/room/c/0/held) on CPU:0
d = Conv2D(c:0, ^b, ^lms/room/c/0, ^lms/room/c/1, ^lms/room/c/0/held) on CPU:0
e = Relu(d:0, ^c, ^d) on CPU:0
"""


def test_ordered_ops_wait_for_the_room_of_their_group() -> None:
    from lms.tf.rewrite.asking import ask_for_room

    nodes = {node.name: node for node in traced_step(GRAPH).nodes}
    for before, group in pairwise(CHAIN):
        for name in group:
            nodes[name].input.extend(f"^{other}" for other in before)
    asking = ask_for_room(GRAPH, CHAIN, nodes)
    assert text(asking) == ASKING
    assert text(nodes.values()) == WAITING
