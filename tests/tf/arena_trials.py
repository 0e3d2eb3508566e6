"""Work of the test processes: the arena of a sealed step."""

from typing import Any

import numpy as np
import tensorflow as tf

from lms import fit_in_memory
from lms.errors import BudgetError
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.measure.arena import Arena, seal
from lms.tf.measure.devices import Device, find_device, nothing
from lms.units import KIB, MIB
from tests.tf.steps import descent

__all__ = ["exact_bytes", "least_budget", "others", "two_steps"]

_POOL = SmallPool(sizes=(40 * KIB, 1024, 512, 512, 256), below=64 * KIB)
_BATCH = (1 * MIB, 1 * MIB + 512, 1 * MIB, 4 * KIB)


def _scattered(device: Device) -> Any:
    """Tensors with free fragments of many sizes between them."""
    holes, kept = [], []
    with tf.device(device.name):
        for size in (2 * MIB, 256, 90 * KIB, 3 * MIB, 4096, 3 * MIB, 64 * KIB, 768):
            holes.append(nothing(size))
            kept.append(nothing(256))
    return kept


def _begun() -> tuple[Device, Any]:
    """The device; an allocation that fails does not wait, but raises."""
    compat.set_gpu_options(disallow_retry_on_allocation_failure=True)
    device = find_device()
    return device, _scattered(device)


def _fits(device: Device, size: int) -> int | None:
    """The address of a tensor; None if the memory has no room for it."""
    try:
        with tf.device(device.name):
            return compat.address_of(nothing(size))
    except tf.errors.ResourceExhaustedError:
        return None


def _sealed(device: Device) -> Arena:
    arena = seal(device, _POOL, _BATCH)
    assert arena is not None
    return arena


def exact_bytes() -> dict[str, Any]:
    """Return what fits into an arena, into its batch, and once it was given up."""
    device, kept = _begun()
    before = device.current_bytes or 0
    arena = _sealed(device)
    arrays = [np.arange(size // 4, dtype=np.float32) for size in _BATCH]
    inputs = arena.admit([*map(compat.host_tensor, arrays), tf.constant([1, 2])])
    assert inputs is not None
    found = {
        "outside": all(compat.address_of(t) < arena.address for t in inputs[:-1]),
        "there": ["GPU" in tensor.backing_device for tensor in inputs],
        "same": all(map(np.array_equal, arrays, inputs[:-1])),
        "fits": _fits(device, arena.capacity) == arena.address,
        "more": _fits(device, arena.capacity + 256),
    }
    del inputs, arena
    found["left"] = (device.current_bytes or 0) - before
    return found | {"kept": len(kept)}


def others() -> dict[str, bool]:
    """Return whether an arena is clear while others do something."""
    device, kept = _begun()
    variable = tf.Variable(tf.zeros([MIB]))
    arena = _sealed(device)
    x = compat.host_tensor(np.ones([MIB // 4], np.float32))
    step = tf.function(lambda x: tf.reduce_sum(tf.exp(x) * 2.0))
    found = {"at first": arena.is_clear(), "over steps": True}
    results: list[Any] = []
    for _ in range(20):
        inputs = arena.receive([x])
        found["over steps"] &= arena.is_clear()
        results = [step(*inputs)]
        del inputs
    found["with a result"] = arena.is_clear()
    with tf.device(device.name):
        large = nothing(2 * MIB)  # more than the batch's chunks
    found["large tensor"] = arena.is_clear()
    del large
    found["without it"] = arena.is_clear()
    variable.assign(tf.ones([MIB]))  # elsewhere, in as many bytes
    found["moved variable"] = arena.is_clear()
    found["made anew"] = arena.admit([x]) is not None and arena.is_clear()
    assert kept
    assert results
    return found


def two_steps() -> dict[str, list[bool]]:
    """Admit two steps in turns, then one whose spacers are for another arena."""
    device, kept = _begun()
    x = compat.host_tensor(np.ones([MIB // 4], np.float32))
    arenas = [_sealed(device) for _ in range(2)]
    found: dict[str, list[bool]] = {"admitted": [], "clear": [], "kept": []}
    for arena in arenas * 2:
        arena.needed = arena.capacity // 4
        walls = arena.walls
        found["admitted"].append(arena.admit([x]) is not None)
        clear = [each for each in arenas if each.is_clear()]
        found["clear"].append(clear == [arena])
        found["kept"].append(arena.walls is walls)
    arenas[0].needed = arenas[0].capacity * 3 // 4
    found["as before"] = [arenas[0].admit([x]) is not None]
    third = _sealed(device)
    found["smaller"] = [arenas[0].admit([x]) is not None, third.is_clear()]
    assert kept
    return found


def least_budget(fragments: int, size: int) -> dict[str, Any]:
    """Plan a step into the least budget that is named beside free fragments."""
    descend, _ = descent(6, 16)
    with tf.device(find_device().name):
        pairs = [(nothing(size), nothing(256)) for _ in range(fragments)]
    kept = [wall for _, wall in pairs]
    del pairs

    def fit(budget: int) -> Any:
        signature = [tf.TensorSpec([1024, 16])]
        return fit_in_memory(descend, signature, budget=budget, recompute=False)

    least = None
    try:
        fit(64 * KIB)
    except BudgetError as error:
        least = error.least_bytes
    assert least is not None
    made = fit(least)
    x = np.ones((1024, 16), np.float32)
    made(x), made(x)
    (report,) = made.report
    return {
        "addresses": report.addresses,
        "used": report.measured_peak_bytes,
        "promised": report.predicted_peak_bytes,
        "least": least,
        "kept": 256 * len(kept),
    }
