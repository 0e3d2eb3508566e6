"""Candidates: what may move, what is ordered, and what filters accept."""

import pytest

from lms.ir.graph import GraphView, Op, Tensor
from lms.planning.candidates import (
    check_scopes,
    large_ops,
    movable,
    small_pool_for,
    smallest_worth_moving,
)
from lms.planning.problem import Filters
from lms.units import GIB, KIB, MIB
from tests.graphs import LOOP, RESHAPE, SKIP, graph_of, make_op


def conv(name: str, kind: str = "Conv3D") -> Op:
    return Op(name=name, type=kind)


NETWORK = graph_of(
    make_op("unet/down1/conv", 100, type="Conv3D"),
    make_op("unet/down1/relu", 100, "unet/down1/conv", type="Relu"),
    make_op("unet/up1/conv", 100, "unet/down1/relu", type="Conv3D"),
    make_op("loss", 4, "unet/up1/conv", type="Mean"),
)


def test_a_tensor_of_the_least_size_may_move_and_a_smaller_one_not() -> None:
    assert movable(SKIP.graph, min_bytes=80) == {"a:0", "c:0"}
    assert movable(SKIP.graph, min_bytes=81) == {"a:0"}


def test_what_a_loop_touches_stays() -> None:
    assert movable(LOOP.graph, min_bytes=1) == {"a:0", "b:0"}


def test_a_buffer_moves_under_the_name_of_its_root() -> None:
    assert movable(RESHAPE.graph, min_bytes=100) == {"a:0"}


def test_persistent_tensors_and_results_stay() -> None:
    ops = make_op("w", 100, persistent=True), make_op("a", 100, "w")
    graph = GraphView(ops=(*ops, make_op("b", 100, "a")), results=("a:0",))
    assert movable(graph, min_bytes=1) == frozenset()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), {"unet/down1/conv", "unet/down1/relu", "unet/up1/conv"}),
        (Filters(include_scopes=("down1",)), {"unet/down1/conv", "unet/down1/relu"}),
        (Filters(exclude_scopes=("down1",)), {"unet/up1/conv"}),
        (Filters(include_types=("Relu",)), {"unet/down1/relu"}),
        (Filters(exclude_types=("Relu",)), {"unet/down1/conv", "unet/up1/conv"}),
        (
            Filters(include_scopes=("unet",), exclude_scopes=("unet/down1/conv",)),
            {"unet/down1/relu", "unet/up1/conv"},
        ),
        (Filters(include_scopes=("down",)), set()),
    ],
    ids=[
        "none",
        "included scope",
        "excluded scope",
        "included type",
        "excluded type",
        "exclusion wins",
        "half a name is no scope",
    ],
)
def test_filters_choose_by_scope_and_type(filters: Filters, expected: set[str]) -> None:
    moved = movable(NETWORK, min_bytes=8, filters=filters)
    assert moved == {f"{name}:0" for name in expected}


def test_a_scope_may_be_written_with_slashes_around_it() -> None:
    assert Filters(include_scopes=("/unet/up1/",)).accepts(conv("unet/up1/conv"))


def test_a_scope_covers_the_number_that_keras_adds_to_a_name() -> None:
    scope = Filters(include_scopes=("unet/up1",))
    assert scope.accepts(conv("unet_2/up1_10/conv"))
    assert not scope.accepts(conv("unet/up1_b/conv"))
    assert not scope.accepts(conv("unet/up10/conv"))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(include_scopes=("down9",)), "'down9'.* down1"),
        (Filters(exclude_scopes=("down9",)), "'down9'.* down1"),
        (Filters(include_types=("Conv2D",)), "'Conv2D'.* Conv3D"),
        (Filters(exclude_types=("relu",)), "'relu'.* Relu"),
    ],
)
def test_a_scope_or_type_that_no_op_has_is_named(
    filters: Filters, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_scopes(NETWORK, filters)


@pytest.mark.parametrize(
    ("step_peak", "least"),
    [(0, 4 * KIB), (2 * MIB, 4 * KIB), (8 * MIB, 16 * KIB), (GIB, 64 * KIB)],
)
def test_the_least_size_is_a_512th_of_the_peak_within_4_and_64_kib(
    step_peak: int, least: int
) -> None:
    assert smallest_worth_moving(step_peak) == least


def test_ops_that_read_or_make_a_large_tensor_are_ordered() -> None:
    chain = large_ops(SKIP.graph, min_bytes=100)
    assert chain == ("a", "b", "e")


def test_ops_with_much_scratch_are_ordered() -> None:
    graph = GraphView(ops=(make_op("a", 1, scratch=100), make_op("b", 1, scratch=99)))
    assert large_ops(graph, min_bytes=100) == ("a",)


def test_loops_aliases_and_persistent_ops_are_not_ordered() -> None:
    assert large_ops(LOOP.graph, min_bytes=1) == tuple(name for name in "abcd")
    assert large_ops(RESHAPE.graph, min_bytes=1) == tuple(n for n in "abcd")
    graph = GraphView(ops=(make_op("w", 100, persistent=True),))
    assert large_ops(graph, min_bytes=1) == ()


def test_a_nook_has_a_chunk_for_each_small_tensor_that_lives_at_once() -> None:
    def made(name: str, size: int, *inputs: str, constant: bool = False) -> Op:
        outputs = (Tensor(name=f"{name}:0", size=size),)
        return Op(
            name=name,
            type="T",
            inputs=inputs,
            outputs=outputs,
            persistent=constant,
            constant=constant,
        )

    ops = (
        made("constant", 4, constant=True),
        *(made(f"s{i}", 300) for i in range(4)),  # 512 bytes each, four at once
        made("large", 9000, *(f"s{i}:0" for i in range(4))),
        made("t", 4, "large:0", "constant:0"),
        made("u", 300, "t:0"),
    )
    small_pool = small_pool_for(GraphView(ops=ops), min_bytes=4096)
    # A quarter more and one, of each size; and the constant.
    assert small_pool.sizes == (512,) * (4 + 1 + 1) + (256,) * (1 + 1 + 1)
    assert small_pool.below == 4096


def test_new_values_of_variables_have_chunks_too_unless_they_are_much() -> None:
    def assigned(size: int) -> GraphView:
        return graph_of(
            Op(
                name="v",
                type="Placeholder",
                outputs=(Tensor(name="v:0", size=0, dtype="resource"),),
                persistent=True,
            ),
            Op(name="x", type="T", outputs=(Tensor(name="x:0", size=64000),)),
            Op(
                name="new",
                type="T",
                inputs=("x:0",),
                outputs=(Tensor(name="new:0", size=size),),
            ),
            Op(
                name="assign",
                type="Assign",
                inputs=("v:0", "new:0"),
                writes=("v:0",),
                replaces_state=True,
            ),
        )

    assert small_pool_for(assigned(1024), min_bytes=512).sizes == (1024,)
    assert small_pool_for(assigned(32000), min_bytes=512).sizes == ()


def test_a_nook_has_room_for_the_largest_small_scratch_whole_and_halved() -> None:
    def needs(scratch: int) -> Op:
        made = (Tensor(name=f"op{scratch}:0", size=9000),)
        return Op(name=f"op{scratch}", type="T", outputs=made, scratch=scratch)

    graph = GraphView(ops=(needs(1024), needs(512), needs(6144), needs(9000)))
    assert small_pool_for(graph, min_bytes=4096).sizes == (3072, 3072, 1024)
