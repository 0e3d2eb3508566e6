"""Small random training steps, drawn by a seed.

    conv ──> relu ──> pool ──> ... ──> loss
     │        │  └─────── gradient <─────┘    reads inputs or outputs of its op
     │        └────────── gradient
     └──── skip: added further on; its gradient waits until the backward pass gets here

Outputs of the forward pass wait for the backward pass. Each op reads the output of the
op before, so that there is one execution order. Forward ops may be recomputed. Sizes
change by poolings and resizings; channels decide whether a convolution is dear.

Known weakness: no op has several outputs, writes in place or shares a buffer; weights
are not counted.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from lms.ir.graph import GraphView, Op, Tensor
from lms.units import MIB, Bytes

__all__ = ["drawn_step"]

_TOP_MIB = (64, 96, 128, 192, 256)
_LEAST_MIB = 8
_CHANNELS = (16, 32, 64, 128, 256)
_TAPS, _FLOAT = 3 * 3, 4  # of a kernel; bytes of a float32
_KINDS = {"Conv2D": 9, "Relu": 5, "Norm": 4, "AddV2": 3, "MaxPool": 1, "Resize": 1}


def drawn_step(seed: int, ops: int) -> GraphView:
    """Draw a training step of `ops` ops, at least 5, or one less, besides its argument.

    Example:
        >>> [op.type for op in drawn_step(0, 5).ops]
        ['Placeholder', 'Conv2D', 'Conv2D', 'LossGrad', 'Conv2DGrad', 'Conv2DGrad']
    """
    return _Drawing(Random(seed)).graph((ops - 1) // 2)


class _Drawing:
    """Draws forward ops in order, and records each op's part of the backward pass."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._top = random.choice(_TOP_MIB) * MIB
        self._ops: list[Op] = []
        self._sizes: dict[str, Bytes] = {}
        self._tape: list[Callable[[str], str]] = []  # gradient of output -> of input
        self._apart: dict[str, str] = {}  # tensor -> gradient that its skip brings back

    def graph(self, there: int) -> GraphView:
        """Draw the step with `there` ops in its forward pass."""
        x = self._op("Placeholder", self._top // 4, persistent=True)
        x = self._convolution(x, back=MIB)
        for _ in range(there - 1):
            x = self._layer(x)
        gradient = self._op("LossGrad", self._sizes[x], x)
        for backward in reversed(self._tape):
            gradient = backward(gradient)
        return GraphView(ops=tuple(self._ops))

    def _layer(self, x: str) -> str:
        """Add a forward op: of a drawn kind, or a convolution where that cannot be."""
        (kind,) = self._random.choices(list(_KINDS), list(_KINDS.values()))
        size = self._sizes[x]
        sizes = {"Relu": size, "Norm": size}
        if size >= 4 * _LEAST_MIB * MIB:
            sizes["MaxPool"] = size // 4
        if 4 * size <= self._top:
            sizes["Resize"] = 4 * size
        if kind in sizes:
            return self._cheap(kind, x, sizes[kind])
        skips = self._skips(x) if kind == "AddV2" else []
        if skips:
            return self._sum(x, self._random.choice(skips))
        return self._convolution(x, back=size)

    def _skips(self, x: str) -> list[str]:
        """List earlier tensors of the same size that no op has added yet."""
        added = {name for op in self._ops if op.type == "AddV2" for name in op.inputs}
        own = (op.outputs[0].name for op in self._ops[:-1] if not op.persistent)
        return [n for n in own if self._sizes[n] == self._sizes[x] and n not in added]

    def _convolution(self, x: str, *, back: Bytes) -> str:
        size = self._top if self._ops[-1].persistent else self._sizes[x]
        flops = 2 * _TAPS * self._random.choice(_CHANNELS) * size // _FLOAT
        y = self._op("Conv2D", size, x, repeatable=True, flops=flops)
        read = () if self._ops[-2].persistent else (x,)
        # Two convolutions: with respect to the input, and to the filters.
        self._back(y, lambda d: self._op("Conv2DGrad", back, d, *read, flops=2 * flops))
        return y

    def _cheap(self, kind: str, x: str, size: Bytes) -> str:
        y = self._op(kind, size, x, repeatable=True, cheap=True)
        reads = {"Relu": (y,), "Norm": (x,), "MaxPool": (x, y), "Resize": ()}[kind]
        self._back(y, lambda d: self._op(f"{kind}Grad", self._sizes[x], d, *reads))
        return y

    def _sum(self, x: str, skip: str) -> str:
        y = self._op("AddV2", self._sizes[x], x, skip, repeatable=True, cheap=True)
        self._back(y, lambda d: self._apart.setdefault(skip, d))
        return y

    def _back(self, y: str, gradient: Callable[[str], str]) -> None:
        """Record the backward pass of an op: its skip's gradient is added first."""

        def backward(d: str) -> str:
            if y in self._apart:
                d = self._op("AddN", self._sizes[y], d, self._apart[y])
            return gradient(d)

        self._tape.append(backward)

    def _op(self, kind: str, size: Bytes, *inputs: str, **facts: Any) -> str:
        """Add an op; return the name of its output."""
        name = f"{kind}_{len(self._ops)}"
        output = Tensor(name=f"{name}:0", size=size)
        self._sizes[output.name] = size
        known: dict[str, Any] = {"inputs": inputs, "outputs": (output,), **facts}
        self._ops.append(Op(name=name, type=kind, **known))
        return output.name
