"""Expected allocations of a planned step equal the log of TensorFlow's allocator."""

import json
import os

import pytest

from lms.emulation import emulate
from lms.units import KIB
from profiling.allocations import compare, expected
from profiling.spans import Span
from tests.graphs import graph_of, make_op, unplanned
from tests.programs import python

STEP = "step"


GRAPH = graph_of(
    make_op("a", 64 * KIB, type="A"),
    make_op("b", 64 * KIB, "a", type="B", inplace=True),
    make_op("c", 64 * KIB, "b", type="C", scratch=128 * KIB),
    results=("c:0",),
)
PLAN = unplanned(GRAPH, chain=("a", "b", "c"))


def _event(at: float, address: int, op: str = "", size: int = 0) -> Span:
    name = "MemoryAllocation" if op else "MemoryDeallocation"
    facts = {"allocator_name": "GPU_0_bfc", "addr": address, "tf_op": op}
    facts |= {"requested_bytes": size}
    return Span(plane="/host:CPU", line="", name=name, start=at, end=at, facts=facts)


def _logged(*events: Span) -> list[Span]:
    mark = Span(plane="/host:CPU", line="", name=STEP, start=0, end=9)
    return [mark, *events]


def test_an_op_that_writes_over_its_input_takes_nothing() -> None:
    found = [(one.op, one.size, one.until) for one in expected(GRAPH, PLAN)]
    made = ("c", 64 * KIB, "the step's end")
    assert found == [("a", 64 * KIB, "b"), made, ("c", 128 * KIB, "c")]


def test_scratch_in_pieces_is_as_expected_and_an_output_too_many_is_not() -> None:
    spans = _logged(
        _event(1, 10, "a", 64 * KIB),
        _event(2, 20, "b", 64 * KIB),
        _event(3, 30, "c", 64 * KIB),
        _event(3, 40, "c", 64 * KIB),
        _event(3, 50, "c", 64 * KIB),
        _event(4, 40),
    )
    (one,) = compare(GRAPH, PLAN, spans, mark=STEP)
    assert (one.op, one.type, one.missing) == ("b", "B", 64 * KIB)


MODELS = {"convolutions": "20MiB", "volumes": "30MiB", "half_precision": "12MiB"}


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    "models", [{"attention": "18MiB"}, pytest.param(MODELS, marks=pytest.mark.long)]
)
def test_ops_take_what_is_expected_of_kernels_for_gpus(models: dict[str, str]) -> None:
    asked = [word for pair in models.items() for word in pair]
    environ = emulate.environment(
        "512MiB", inherited={**os.environ}, card="v100-pcie", dry=True
    )
    done = python("-m", "tests.profiling.allocation_trials", *asked, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line[0] == "{"]
    for build, one in zip(models, found, strict=True):
        assert one["ordered"] > 10, build
        assert one["taken"] > 1 << 20, build
        assert one["unlike"] == [], build
