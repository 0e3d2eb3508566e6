"""Choices of ops to recompute, on graphs drawn by hand."""

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.ir.liveness import buffers, peak
from lms.ir.recompute import original_name, with_recomputed
from lms.machine.hardware import PRESETS, Costs
from lms.planning.recompute_choice import Fates, LinkShare, Terms, choose_fates
from tests.graphs import graph_of
from tests.planning.stored import read_step
from tests.strategies import examples

CHEAP = {"mul", "add", "relu", "sum", "cast"}


def op(name: str, *inputs: str, size: int = 64, kind: str = "", **others: object) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=size),)
    options = {"repeatable": (kind or name.rstrip("0123456789")) in CHEAP, **others}
    return Op(name=name, type="T", inputs=inputs, outputs=outputs, **options)


def chosen(graph: GraphView, *tensors: str, **terms: Any) -> dict[str, tuple[str, ...]]:
    """Return the readers of each recomputed op."""
    found = chosen_by(graph, [f"{name}:0" for name in tensors], **terms).recomputed
    with_recomputed(graph, found)  # raises if it is no such thing
    return {item.op: item.readers for item in found}


def chosen_by(
    graph: GraphView,
    candidates: Collection[str],
    before: Fates | None = None,
    *,
    budget: int = 0,
    most: float = math.inf,
    costs: Costs | None = None,
    **terms: Any,
) -> Fates:
    """Fates of the candidates, if each op takes a second."""
    second = Costs(seconds={op.name: 1.0 for op in graph.ops}, source="drawn")
    asked = Terms(budget=budget, most=lambda _: most, **terms)
    return choose_fates(graph, candidates, costs or second, asked, before)


def row(*names: str, size: int = 64) -> list[Op]:
    """Ops that each read the one before; the first is there already."""
    return [op(own, f"{before}:0", size=size) for before, own in pairwise(names)]


def later(name: str) -> list[Op]:
    """Some ops between a way there and a way back, the last of which is `last`."""
    return row(name, "between0", "between1", "between2", "last", size=1)


# conv's output is read by its own gradient, so it is there when relu's is needed.
SAVED = graph_of(
    op("conv"),
    op("mul", "conv:0"),
    op("relu", "mul:0"),
    op("next", "relu:0", size=1),
    *later("next"),
    op("relu_grad", "last:0", "relu:0", size=1),
    op("conv_grad", "relu_grad:0", "conv:0", size=1),
)


def test_a_tensor_is_made_again_from_what_is_there_later() -> None:
    assert chosen(SAVED, "relu") == {"mul": ("lms/again/relu",), "relu": ("relu_grad",)}


def test_what_no_cheap_op_made_is_kept() -> None:
    assert chosen(SAVED, "conv") == {}


def test_what_takes_longer_than_it_may_is_kept() -> None:
    assert chosen(SAVED, "relu", most=1.9) == {}  # two ops of a second each
    assert chosen(SAVED, "relu", most=2.1) != {}


def test_a_source_that_is_gone_is_kept_only_if_it_is_smaller() -> None:
    def graph(size: int) -> GraphView:
        return graph_of(
            op("small", size=size),
            op("cast", "small:0"),
            op("next", "cast:0", size=1),
            *later("next"),
            op("grad", "last:0", "cast:0", size=1),
        )

    assert chosen(graph(16), "cast") == {"cast": ("grad",)}
    assert chosen(graph(64), "cast") == {}


def test_as_little_is_recomputed_as_will_do() -> None:
    waits = 2 * 64 + 2  # conv's and relu's outputs while others run
    assert chosen(SAVED, "relu", budget=waits) == {}
    # Where relu's gradient runs mul's output is there too: more than is saved.
    assert chosen(SAVED, "relu", budget=waits - 1) == {}
    assert chosen(SAVED, "relu", budget=waits - 32) != {}


def test_of_two_sums_in_a_row_one_is_kept_for_the_other() -> None:
    residual = graph_of(
        op("conv0"),
        op("conv1", "conv0:0"),
        op("sum1", "conv0:0", "conv1:0"),
        op("conv2", "sum1:0"),
        op("sum2", "sum1:0", "conv2:0"),
        op("conv3", "sum2:0"),
        *row("conv3", *(f"far{i}" for i in range(40))),
        op("grad3", "far39:0", "sum2:0"),
        op("grad2", "grad3:0", "conv2:0"),
        *row("grad2", *(f"and{i}" for i in range(40))),
        op("grad1", "and39:0", "sum1:0"),
        op("grad0", "grad1:0", "conv1:0", "conv0:0"),
    )
    assert chosen(residual, "sum1", "sum2") == {"sum1": ("grad1",)}
    assert chosen(residual, "sum2") == {"sum2": ("grad3",)}


def test_an_alias_is_made_again_with_its_buffer() -> None:
    graph = graph_of(
        op("conv"),
        op("relu", "conv:0"),
        op("flat", "relu:0", alias="relu:0", repeatable=True),
        *row("flat", "next", "far", "and"),
        op("grad", "and:0", "flat:0"),
        op("conv_grad", "grad:0", "conv:0"),
    )
    assert chosen(graph, "relu") == {"relu": ("lms/again/flat",), "flat": ("grad",)}


def test_what_a_loop_reads_or_the_step_returns_is_kept() -> None:
    ops = [
        op("conv"),
        op("relu", "conv:0"),
        op("next", "relu:0", size=1),
        *later("next"),
        op("grad", "last:0", "relu:0", "conv:0", fixed=True),
    ]
    assert chosen(graph_of(*ops), "relu") == {}
    ops[-1] = op("grad", "last:0", "relu:0", "conv:0")
    assert chosen(graph_of(*ops, results=("relu:0",)), "relu") == {}
    assert chosen(graph_of(*ops), "relu") == {"relu": ("grad",)}


def values(graph: GraphView) -> dict[str, int]:
    """Return each op's value: a hash of its name and of the values that it read."""
    found: dict[str, int] = {}
    for op in graph.ops:
        read = tuple(found[op_of(tensor)] for tensor in op.inputs)
        found[op.name] = hash((original_name(op.name), read))
    return {name: found[name] for name in found if original_name(name) == name}


@examples(20)
@given(
    step=st.sampled_from(("drawn_300", "drawn_450", "drawn_750", "transformer")),
    data=st.data(),
)
def test_every_op_reads_the_same_values_whatever_is_made_again(
    step: str, data: st.DataObject
) -> None:
    drawn = read_step(step).graph
    repeatable = {op.name for op in drawn.ops if "Conv" not in op.type and op.outputs}
    graph = GraphView(
        ops=tuple(
            replace(op, repeatable=op.name in repeatable and not op.persistent)
            for op in drawn.ops
        ),
        results=drawn.results,
    )
    large = sorted(b.root for b in buffers(graph) if b.size > 256)
    wanted = data.draw(st.sets(st.sampled_from(large), min_size=1))
    budget = peak(graph) * data.draw(st.integers(0, 90)) // 100
    fates, again = Fates(), graph
    for _ in range(data.draw(st.integers(1, 3))):
        copies = {b.root for b in buffers(again) if original_name(b.root) in wanted}
        fates = chosen_by(again, copies, fates, budget=budget)
        again = with_recomputed(graph, fates.recomputed)
    assert len(again.ops) == len(graph.ops) + len(fates.recomputed)
    assert values(again) == values(graph)


def test_a_copy_is_recomputed_in_turn_where_it_would_be_held_for_long() -> None:
    graph = graph_of(
        op("input"),
        op("mul", "input:0"),
        op("relu", "mul:0"),
        op("next", "relu:0"),
        *later("next"),
        op("relu_grad", "last:0", "relu:0"),
        op("large", "relu_grad:0", size=100),
        op("mul_grad", "large:0", "mul:0"),
        op("end", "mul_grad:0", "input:0"),
    )

    def chosen(graph: GraphView, before: Fates) -> Fates:
        roots = [b.root for b in buffers(graph) if original_name(b.root)[:2] != "in"]
        return chosen_by(graph, roots, before)

    once = chosen(graph, Fates())
    assert [each.op for each in once.recomputed] == ["mul", "relu"]
    twice = chosen(with_recomputed(graph, once.recomputed), once)
    assert twice.recomputed[:2] == once.recomputed
    assert [each.op for each in twice.recomputed[2:]] == ["lms/again/mul"]
    assert twice.recomputed[2].readers == ("mul_grad",)


def test_a_step_needs_less_when_what_it_saves_is_made_again() -> None:
    layers = range(4)
    ops = [op("x0")]
    for i in layers:
        ops += [op(f"conv{i}", f"x{i}:0"), op(f"x{i + 1}", f"conv{i}:0", kind="relu")]
    gradient = "x4:0"
    for i in reversed(layers):  # relu's gradient reads relu's output; conv's conv's
        ops.append(op(f"grad_x{i}", gradient, f"x{i + 1}:0"))
        ops.append(op(f"grad{i}", f"grad_x{i}:0", f"conv{i}:0"))
        gradient = f"grad{i}:0"
    graph = graph_of(*ops)
    roots = [buffer.root for buffer in buffers(graph)]
    found = chosen_by(graph, roots, budget=6 * 64).recomputed
    assert [item.op for item in found] == ["x1", "x2", "x3"]
    assert peak(graph) == 9 * 64  # four pairs, and the gradient of the last
    assert peak(with_recomputed(graph, found)) == 6 * 64


def test_small_tensors_are_kept_and_large_variables_are_not_read_late() -> None:
    def graph(size: int) -> GraphView:
        return graph_of(
            op("conv"),
            op("scale", "conv:0", size=size, repeatable=True),
            op("mul", "conv:0", "scale:0"),
            op("next", "mul:0"),
            op("w", persistent=True, reads_state=True),
            op("cast", "w:0"),
            op("far", "next:0", "cast:0"),
            op("and", "far:0"),
            op("grad", "and:0", "mul:0", "conv:0", "cast:0"),
        )

    assert list(chosen(graph(16), "mul", least=32)) == ["mul"]
    assert list(chosen(graph(64), "mul", least=32)) == ["scale", "mul"]
    assert chosen(graph(16), "scale", least=32) == {}
    assert chosen(graph(16), "cast", least=32) == {}


def test_what_costs_more_to_recompute_than_a_copy_counts_for_moves() -> None:
    graph = graph_of(
        op("mul", size=1 << 20),
        op("relu", "mul:0", size=1 << 20),
        *later("relu"),
        op("grad", "last:0", "relu:0", "mul:0", size=1),
    )
    hardware = replace(PRESETS["v100-pcie"], latency=0.0)
    copies = 2 * hardware.copy_seconds(1 << 20, to_device=True)
    seconds = {op.name: 1.0 for op in graph.ops} | {"relu": 0.3 * copies}
    costs = Costs(seconds=seconds, source="drawn")

    def moved(price: float) -> list[str]:
        share = LinkShare(hardware=hardware, seconds=1.0, price=price)
        fates = chosen_by(graph, ["relu:0"], budget=1 << 20, share=share, costs=costs)
        assert bool(fates.recomputed) is not bool(fates.leaving)
        return [root for root, _ in fates.leaving]

    assert moved(price=0.1) == ["relu:0"]
    assert moved(price=0.4) == []
