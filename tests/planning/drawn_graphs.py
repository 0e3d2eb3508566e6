"""Graphs as large as asked for, drawn without TensorFlow.

What a planner finds hard is in them: skips from the way down to the way up, gradients
that read what the forward pass made, weights, and many small ops between.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lms.ir.graph import GraphView, Op, Tensor

__all__ = ["unet_like"]

_LEVELS = 5
_TOP_BYTES = 144**3 * 16 * 4  # one activation of the top level; a quarter a level down
_TOP_WEIGHT = 27 * 16 * 16 * 4  # one kernel there; four times as much a level down
_SMALL = 256

# What may be run a second time, of the forward pass; `Upsample` is a resizing.
_CHEAP = (
    "AddV2",
    "BiasAdd",
    "ConcatV2",
    "LeakyRelu",
    "Mul",
    "Rsqrt",
    "Sub",
    "Upsample",
)


def unet_like(ops: int) -> GraphView:
    """Return a training step of a U-Net with a depth that gives `ops` ops.

    Example:
        >>> graph = unet_like(1000)
        >>> len(graph.ops)
        1000
    """
    one, two = (len(_Drawing(layers).graph().ops) for layers in (1, 2))
    layers = (ops - one) // (two - one) + 1
    if layers < 1:
        raise ValueError(f"`ops` must be at least {one}, got {ops}. Draw a larger one.")
    return _Drawing(layers).graph(ops)


class _Drawing:
    """Ops in the order in which a U-Net's step makes them.

    Args:
        layers: Convolutions of each level, on each way.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._ops: list[Op] = []
        self._tape: list[Callable[[str], str]] = []  # gradient of output -> of input
        self._skips: dict[int, str] = {}  # gradients that skips bring back, by level

    def graph(self, ops: int = 0) -> GraphView:
        """The step; small ops that nobody reads fill it up to `ops`."""
        x = self._op("Placeholder", _TOP_BYTES // 4, persistent=True)
        skips = []
        for level in range(_LEVELS):
            x = self._convolutions(x, level)
            if level < _LEVELS - 1:
                skips.append(self._skip(x, level))
        for level in reversed(range(_LEVELS - 1)):
            x = self._join(x, skips[level], level)
            x = self._convolutions(x, level)
        loss = self._op("Mean", _SMALL, x)
        gradient = self._op("MeanGrad", _size(0), loss)
        for backward in reversed(self._tape):
            gradient = backward(gradient)
        while len(self._ops) < ops:
            self._op("Const", _SMALL, persistent=True, constant=True)
        return GraphView(ops=tuple(self._ops), results=(loss,))

    def _op(self, kind: str, size: int, *inputs: str, **facts: Any) -> str:
        """Add an op; returns the name of what it makes."""
        name = f"{kind}_{len(self._ops)}"
        made = (Tensor(name=f"{name}:0", size=size),)
        cheap = kind in _CHEAP
        op = Op(name=name, type=kind, inputs=inputs, outputs=made, repeatable=cheap)
        self._ops.append(replace(op, **facts))
        return f"{name}:0"

    def _variable(self, size: int) -> str:
        return self._op("ReadVariableOp", size, persistent=True, reads_state=True)

    def _convolutions(self, x: str, level: int) -> str:
        for _ in range(self._layers):
            x = self._convolution(x, level)
        return x

    def _convolution(self, x: str, level: int) -> str:
        """Convolution, bias, normalisation, leaky ReLU."""
        size, scratch = _size(level), _size(level) // 8
        read = self._size_of(x)
        weight = self._variable(_weight(level))
        bias = self._variable(_SMALL)
        made = self._op("Conv3D", size, x, weight, scratch=scratch)
        biased = self._op("BiasAdd", size, made, bias, inplace=True)
        mean = self._op("Mean", _SMALL, biased)
        scale = self._op("Rsqrt", _SMALL, self._op("AddV2", _SMALL, mean))
        normal = self._op("Mul", size, biased, scale)
        y = self._op("LeakyRelu", size, normal)

        def backward(dy: str) -> str:
            d = self._op("LeakyReluGrad", size, dy, normal, inplace=True)
            along = self._op("Sum", _SMALL, self._op("Mul", size, d, biased))
            d = self._op("Mul", size, d, scale, inplace=True)
            d = self._op("Sub", size, d, along, inplace=True)
            self._update(self._op("BiasAddGrad", _SMALL, d), _SMALL)
            filters = self._op(
                "Conv3DBackpropFilterV2", _weight(level), x, d, scratch=scratch
            )
            self._update(filters, _weight(level))
            return self._op("Conv3DBackpropInputV2", read, weight, d, scratch=scratch)

        self._tape.append(backward)
        return y

    def _size_of(self, tensor: str) -> int:
        """The bytes of a tensor that was just made or skipped."""
        wanted = tensor.removesuffix(":0")
        return next(
            op.outputs[0].size for op in reversed(self._ops) if op.name == wanted
        )

    def _update(self, gradient: str, size: int) -> None:
        """Adam, in short."""
        first = self._variable(size)
        moment = self._op("AddV2", size, first, gradient)
        second = self._op("Square", size, gradient, inplace=True)
        root = self._op("Sqrt", size, second, inplace=True)
        change = self._op("RealDiv", size, moment, root, inplace=True)
        self._op("AssignSubVariableOp", 0, change)

    def _skip(self, x: str, level: int) -> str:
        """Where a level's output leaves for the way up; then half the voxels."""

        def backward(dy: str) -> str:
            d = self._op("MaxPoolGrad", _size(level), dy, x)
            return self._op("AddN", _size(level), d, self._skips[level], inplace=True)

        self._tape.append(backward)
        self._op("Shape", _SMALL, x)
        return x

    def _join(self, x: str, skip: str, level: int) -> str:
        """Upsample and concatenate with the skip."""
        size, below = _size(level), self._size_of(x)
        up = self._op("Upsample", size, x)
        both = self._op("ConcatV2", 2 * size, up, skip)

        def backward(dy: str) -> str:
            self._skips[level] = self._op("Slice", size, dy)
            return self._op("UpsampleGrad", below, self._op("Slice", size, dy))

        self._tape.append(backward)
        return both


def _size(level: int) -> int:
    return _TOP_BYTES // 4**level


def _weight(level: int) -> int:
    return _TOP_WEIGHT * 4**level
