"""Element-wise arithmetic on NumPy's arrays, with the bits of TensorFlow's kernels.

An op belongs to it only where both give the same bits on this machine: sums, products,
quotients and roots are rounded correctly by either (IEEE 754), but a vectorised kernel
may take an estimate instead. So each type is tried before it is first used, in a thread
of TensorFlow's, which takes denormal numbers for zero.

Known weakness: what was tried are the kernels of the CPU. Those of a GPU are others.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

from lms.ir.graph import HostUpdate

__all__ = ["has_equal_bits", "updated"]

_ONE: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Sqrt": np.sqrt,
    "Square": np.square,
}

_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "AddN": np.add,
    "AddV2": np.add,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Sub": np.subtract,
}

# So many numbers of each kind are tried.
_TRIED = 4000


def updated(
    update: HostUpdate, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What an update makes, by the names of its values.

    Args:
        update: The arithmetic.
        values: What it begins with.

    Example:
        >>> from lms.ir.graph import Arithmetic
        >>> square = Arithmetic(type="Square", inputs=("g",), output="s")
        >>> update = HostUpdate(read=(), steps=(square,), written=(), size=4)
        >>> updated(update, {"g": np.float32([3])})["s"]
        array([9.], dtype=float32)
    """
    known = dict(values)
    with np.errstate(all="ignore"):
        for step in update.steps:
            inputs = [known[name] for name in step.inputs]
            known[step.output] = {**_ONE, **_TWO}[step.type](*inputs)
    return known


def has_equal_bits(kind: str) -> bool:
    """Whether NumPy makes the same bits of float32 numbers as TensorFlow on this CPU.

    Args:
        kind: The type of an op; an AddN is one of two tensors.

    Example:
        >>> has_equal_bits("Mul"), has_equal_bits("Erf")
        (True, False)
    """
    return kind in _equal_kinds()


@cache
def _equal_kinds() -> frozenset[str]:
    """Types of ops that were tried, with equal bits."""
    equal: set[str] = set()

    def compare(own: np.ndarray, *given: np.ndarray, kind: str) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = {**_ONE, **_TWO}[kind](*given)
        if own.tobytes() == np.asarray(found, np.float32).tobytes():
            equal.add(kind)
        return np.zeros((), np.float32)

    @tf.function(autograph=False, jit_compile=False)
    def every(*pair: Any) -> Any:
        for kind in (*_ONE, *_TWO):
            given = pair[:1] if kind in _ONE else pair
            function = partial(compare, kind=kind)
            tf.numpy_function(function, [_kernel(kind, given), *given], tf.float32)

    every(*(tf.constant(numbers) for numbers in _numbers()))
    return frozenset(equal)


def _kernel(kind: str, given: tuple[Any, ...]) -> Any:
    if kind == "AddN":
        return tf.raw_ops.AddN(inputs=list(given))
    names = ("x",) if kind in _ONE else ("x", "y")
    return getattr(tf.raw_ops, kind)(**dict(zip(names, given, strict=True)))


def _numbers() -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers of all magnitudes, zeros and denormal ones among them."""
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 2**32, (2, _TRIED), dtype=np.uint32)
    anything = bits.view(np.float32)
    usual = draw.standard_normal((2, _TRIED), np.float32)
    small = usual * np.float32(1e-39)
    every = np.concatenate([anything, usual, small, usual[::-1] * 0], axis=1)
    every = np.where(np.isfinite(every), every, np.float32(1))
    return every[0], every[1]
