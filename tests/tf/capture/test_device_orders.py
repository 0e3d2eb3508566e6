"""No two plans of one step can wait for each other: laws of the order between cards."""

from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from lms.errors import UnsupportedError
from lms.tf import compat
from lms.tf.capture.device_orders import always_true, devices_of, edges_between
from lms.tf.nodes import source_of

pytestmark = pytest.mark.tf


def card(number: int) -> str:
    return compat.device_name(f"GPU:{number}")


def node(name: str, number: int, *inputs: str, op: str = "Neg") -> compat.NodeDef:
    return compat.made_node(name, op, inputs, card(number))


def reduction(name: str, number: int, key: str, value: str) -> compat.NodeDef:
    return node(name, number, value, "size", "group", key, op="CollectiveReduceV2")


NUMBERS = {"size": 2, "group": 1, "first": 7, "second": 8}


def waits(nodes: Any, edges: Any) -> dict[str, set[str]]:
    names = {one.name for one in nodes}
    found = {n.name: {*map(source_of, n.input)} & names for n in nodes}
    return {name: found[name] | {*edges.get(name, ())} for name in found}


def test_ops_keep_the_order_of_a_card_that_is_planned_already() -> None:
    nodes = [node("a", 0), node("b", 0), node("c", 1, "a"), node("d", 0)]
    edges = edges_between(nodes, card(1), {}, [("a", "gone", "b", "d")])
    assert edges == {"b": ("a",), "d": ("b",)}
    assert devices_of(nodes) == (card(0), card(1))


def test_a_collective_waits_for_what_its_ops_on_all_cards_wait_for() -> None:
    nodes = [node("x", 0), node("y", 1)]
    nodes += [reduction("r0", 0, "first", "x"), reduction("r1", 1, "first", "y")]
    first, second = (edges_between(nodes, card(n), NUMBERS, []) for n in (0, 1))
    assert first == {"r0": ("y",), "r1": ("r0",)}
    assert second == {"r1": ("x",), "r0": ("r1",)}


def test_a_collective_of_unknown_keys_is_not_planned() -> None:
    nodes = [node("x", 0), node("y", 1)]
    nodes += [reduction("r0", 0, "own", "x"), reduction("r1", 1, "own", "y")]
    with pytest.raises(UnsupportedError, match="collective 'r0' has keys"):
        edges_between(nodes, card(0), NUMBERS, [])


def test_collectives_with_other_processes_come_in_the_order_of_their_keys() -> None:
    nodes = [reduction("late", 0, "second", "x"), reduction("early", 0, "first", "y")]
    assert edges_between(nodes, card(0), NUMBERS, []) == {"late": ("early",)}
    alone = {**NUMBERS, "size": 1}
    assert edges_between(nodes, card(0), alone, []) == {}


def test_workers_with_constant_keys_order_their_collectives_themselves() -> None:
    keys = [compat.constant(f"k{n}", 9 - n, tf.int32) for n in range(2)]
    nodes = [reduction("r0", 0, "k0", "x"), reduction("r1", 0, "k1", "r0")]
    numbers = {"size": 2, "group": 1}
    assert edges_between([*keys, *nodes], card(0), numbers, []) == {}


def test_keys_of_one_device_may_be_unknown() -> None:
    nodes = [reduction("r0", 0, "own", "x")]
    assert edges_between(nodes, card(0), NUMBERS, []) == {}


def test_keys_are_known_within_a_branch() -> None:
    into = [
        node("into", 0, "first", op="Switch"),
        node("key", 0, "into", op="Identity"),
    ]
    nodes = [*into, reduction("r0", 0, "key", "x"), reduction("r1", 1, "first", "y")]
    assert edges_between(nodes, card(0), NUMBERS, []) == {"r1": ("r0",)}


@pytest.mark.parametrize(
    ("devices", "lengths", "is_true"),
    [(2, [3], True), (2, [4], False), (1, [3], False), (2, [3, 4], False)],
)
def test_gathered_lengths_are_equal_if_all_devices_say_so(
    devices: int, lengths: list[int], *, is_true: bool
) -> None:
    first = [3, *lengths[1:]]
    nodes = [compat.constant(f"n{n}", (first, lengths)[n], tf.int32) for n in (0, 1)]
    nodes += [
        node(f"g{n}", n, f"n{n}", "size", "group", "first", op="CollectiveGatherV2")
        for n in range(devices)
    ]
    nodes += [node(end, 0, "g0", "axes", op=end) for end in ("Max", "Min")]
    nodes.append(node("equal", 0, "Max", "Min", op="Equal"))
    assert list(always_true(nodes, NUMBERS)) == ["equal"] * is_true


@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(1, 4))
def test_cards_that_are_planned_in_turn_meet_in_every_collective(
    random: Any, cards: int, collectives: int
) -> None:
    """Any order that the graph of a card allows lets all cards run to the end."""
    numbers = {**NUMBERS, **{f"key{k}": k for k in range(collectives)}}
    nodes = list[compat.NodeDef]()
    for number in range(cards):
        for k in range(collectives):
            made = f"{number}/make{k}"
            before = [f"{number}/reduce{k - 1}"] * (k > 0 and random.random() < 0.3)
            nodes.append(node(made, number, *before))
            nodes.append(reduction(f"{number}/reduce{k}", number, f"key{k}", made))
    orders = list[tuple[str, ...]]()
    for number in range(cards):
        left = waits(nodes, edges_between(nodes, card(number), numbers, orders))
        order = list[str]()
        while left:
            ready = sorted(name for name, before in left.items() if not before)
            assert ready, "a card's graph has a cycle"
            chosen = ready[int(np.floor(random.random() * len(ready)))]
            order.append(chosen)
            del left[chosen]
            for before in left.values():
                before.discard(chosen)
        orders.append(tuple(n for n in order if n.startswith(f"{number}/")))
    together: TopologicalSorter[str] = TopologicalSorter()
    for one, before in waits(nodes, {}).items():
        together.add(met(one), *map(met, before))
    for order in orders:
        for first, then in pairwise(order):
            together.add(met(then), met(first))
    assert [*together.static_order()]


def met(name: str) -> str:
    """The ops of a collective are one: none ends before all have begun."""
    return name.partition("/")[2] if "reduce" in name else name
