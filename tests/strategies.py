"""Random graphs for hypothesis: small, and with everything that a graph may hold."""

from hypothesis import settings
from hypothesis import strategies as st

from lms.ir.graph import GraphView, Op, Tensor

__all__ = ["examples", "graphs"]

# Few sizes, so that in-place ops often find an input of their output's size.
_SIZES = st.sampled_from((0, 1, 8, 8, 8, 16, 16, 40, 100))
_SCRATCH = st.sampled_from((0, 0, 0, 0, 5, 60))
_KINDS = st.sampled_from(
    ("plain",) * 8 + ("inplace", "inplace", "alias", "alias", "persistent", "fixed")
)


def examples(count: int) -> settings:
    """Limit a law to `count` examples in profile `full`, a third in `quick`."""
    return settings(max_examples=count * settings().max_examples // 100)


@st.composite
def graphs(draw: st.DrawFn, *, max_ops: int = 40) -> GraphView:
    """A graph of 1 to `max_ops` ops in a random execution order.

    It has aliases (also of aliases, of persistent tensors and of loops), ops that write
    in place, persistent ops, loops, scratch, control edges, tensors of no bytes, ops
    with several outputs or none, and results.
    """
    ops: list[Op] = []
    sizes: dict[str, int] = {}
    for number in range(draw(st.integers(1, max_ops))):
        op = _draw_op(draw, f"op{number}", ops, sizes)
        ops.append(op)
        sizes.update((tensor.name, tensor.size) for tensor in op.outputs)
    names = list(sizes)
    results = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
    return GraphView(ops=tuple(ops), results=tuple(results))


def _draw_op(draw: st.DrawFn, name: str, ops: list[Op], sizes: dict[str, int]) -> Op:
    kind = draw(_KINDS)
    # Recent tensors are near the end: indices count from there.
    recent = list(reversed(sizes))
    picks = draw(st.lists(st.integers(0, 11), max_size=3)) if recent else []
    inputs = tuple(recent[min(pick, len(recent) - 1)] for pick in picks)
    if kind == "persistent":
        inputs = ()
    if kind == "alias" and inputs:
        made = (Tensor(name=f"{name}:0", size=sizes[inputs[0]]),)
        return Op(
            name=name, type="Reshape", inputs=inputs, outputs=made, alias=inputs[0]
        )
    count = draw(st.sampled_from((1, 1, 1, 1, 0, 2)))
    return Op(
        name=name,
        type=kind.title(),
        inputs=inputs,
        controls=_draw_controls(draw, ops),
        outputs=tuple(
            Tensor(name=f"{name}:{i}", size=draw(_SIZES)) for i in range(count)
        ),
        scratch=draw(_SCRATCH),
        inplace=kind == "inplace",
        persistent=kind == "persistent",
        fixed=kind == "fixed",
    )


def _draw_controls(draw: st.DrawFn, ops: list[Op]) -> tuple[str, ...]:
    back = draw(st.sampled_from((0, 0, 0, 0, 1, 3)))
    return (ops[-back].name,) if 0 < back <= len(ops) else ()
