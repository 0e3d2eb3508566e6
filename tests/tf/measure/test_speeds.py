"""Rates of a device, by a clock that goes as told."""

import pytest

from lms.tf.measure import devices, speeds

pytestmark = pytest.mark.tf

_OP = 70e-6


@pytest.mark.parametrize("waits", [(0.0, 0.0), (3e-4, 3e-4), (2e-3, 2e-3)])
def test_what_a_call_takes_besides_its_ops_does_not_count(
    waits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _found(monkeypatch, _OP, *waits) == pytest.approx(_OP)


def test_a_call_that_was_held_up_makes_an_op_at_most_twice_as_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _OP / 2 <= _found(monkeypatch, _OP, 33 * _OP, 0.0) < _OP


def test_a_slow_op_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _found(monkeypatch, 0.3, 0.01, 9.0) == pytest.approx(0.31)


def _found(monkeypatch: pytest.MonkeyPatch, op: float, *waits: float) -> float:
    """Seconds found for an op, where a short call and a long one wait besides."""

    def seconds(count: int) -> float:
        return waits[count > 1] + count * op

    monkeypatch.setattr(speeds, "_repeated", lambda *given: given[-1])
    monkeypatch.setattr(speeds, "seconds_of", seconds)
    return speeds._seconds_each(devices.find_device(), "DeepCopy", None)
