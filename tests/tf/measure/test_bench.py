"""How a call is timed, by a clock that goes as told."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lms.tf.measure import bench, scratch

pytestmark = pytest.mark.tf

Timing = Callable[..., tuple[float, int]]


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Timing:
    """Time a call of given lengths, the last for all that follow.

    What is yielded takes them; it returns the seconds found and how many calls were
    made.
    """
    now = [0.0]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return now[0]

    monkeypatch.setattr(bench, "time", Clock)

    def take(*lengths: float, set_up: bool = False) -> object:
        calls: list[float] = []

        def call() -> None:
            calls.append(lengths[min(len(calls), len(lengths) - 1)])
            now[0] += calls[-1]

        return bench.seconds_of(call, set_up=set_up), len(calls)

    return take  # type: ignore[return-value]


def test_the_first_call_does_not_count(timing: Timing) -> None:
    assert timing(9.0, 0.008) == (pytest.approx(0.008), 1 + 3)  # until 0.02 s
    assert timing(9.0, 0.001) == (pytest.approx(0.001), 1 + 9)


def test_a_slow_first_call_counts_where_it_was_set_up_before(timing: Timing) -> None:
    assert timing(9.0, 2.0) == (2.0, 2)
    assert timing(9.0, 2.0, set_up=True) == (9.0, 1)
    assert timing(0.01, 0.008, set_up=True) == (pytest.approx(0.008), 1 + 3)


@pytest.mark.parametrize(
    ("device", "kind", "limit", "expected"),
    [
        ("GPU", "Conv3D", "100", 14 << 20),  # 1.4 of 10 MiB: x, y and twice the filter
        ("GPU", "Conv3D", "12", 12 << 20),
        ("GPU", "MatMul", "12", 5 << 20),
        ("CPU", "Conv3D", "12", 5 << 20),
    ],
)
def test_a_convolution_that_cannot_run_alone_has_room_for_its_workspace(
    device: str, kind: str, limit: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(scratch.VARIABLE, limit)
    op: Any = SimpleNamespace(op=SimpleNamespace(type=kind, flops=1), moved=10 << 20)
    on, unguarded = SimpleNamespace(is_gpu=device == "GPU"), list[bool]()
    given: Any = SimpleNamespace(
        device=on, take_guards_off=lambda: unguarded.append(True)
    )
    assert scratch._usual(op, given) == expected
    assert bool(unguarded) is (device == "GPU" and kind == "Conv3D")


@pytest.mark.parametrize("free", [64 << 20, 2 << 30])
def test_guards_are_off_where_they_have_no_room(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bench._UNGUARDED, "0")  # so that its absence comes back
    monkeypatch.delenv(bench._UNGUARDED)
    monkeypatch.setattr(bench, "measurements_of", lambda _: bench.Measurements())
    device: Any = SimpleNamespace(free_bytes=free)
    with bench.Bench(device):
        pass
    assert (bench.os.environ.get(bench._UNGUARDED) == "1") is (free < 1 << 30)
