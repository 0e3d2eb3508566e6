"""How a tensor travels between device and host.

    host store (CPU, memory-limited)         device copy (accelerators)

    tensor ──> PyFunc put ─┐                 tensor ──> Identity @host
                           : host arrays                    │
    Empty ──> PyFunc get <─┘                  reader <── Identity @host
      └──> Identity, after get

A transport makes nodes; the rewriter wires them. Both have one op that starts a copy
and one that ends when the copy has ended, or yields it.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import tensorflow as tf

from lms.tf import compat

__all__ = ["CopyOps", "DeviceCopy", "Transport", "made_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOps:
    """The ops of one copy.

    Args:
        nodes: All of them.
        start: Starts the copy.
        end: Ends when a swap-out has ended; yields a swap-in.
        settled: What the ops that are ordered after `start` must wait for: that the
            copy has its room, or has begun. None where nothing need be waited for.
        wait: Holds a thread until the copy has ended, so it should run late; None
            where none does.
    """

    nodes: tuple[compat.NodeDef, ...]
    start: compat.NodeDef
    end: compat.NodeDef
    settled: compat.NodeDef | None = None
    wait: compat.NodeDef | None = None


class Transport(Protocol):
    """Makes the nodes of one tensor's travel.

    `takes_room_first` says whether the op that starts a swap-in takes room on the
    device, and ends before the copy does.
    """

    takes_room_first: ClassVar[bool]

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> CopyOps:
        """The ops that copy `source` to the host."""
        ...

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """The ops that copy a tensor in."""
        ...

    def host_peak_bytes(self) -> int | None:
        """The most host bytes held so far, None where it is not known."""
        ...

    def release(self) -> None:
        """Give the host memory back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCopy:
    """Swaps by TensorFlow's own send and receive, between two devices.

    The swap-in is an `Identity` on the host too: what starts the copy to the device is
    the host op that waits for the trigger. On the device it would start at once,
    because a receive has no control inputs.

    Args:
        host: Full name of the host device.
    """

    takes_room_first: ClassVar[bool] = False

    host: str

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> CopyOps:
        """An `Identity` on the host that reads the tensor."""
        del device, copies
        node = made_node(name, "Identity", [source], self.host, T=spec.dtype)
        return CopyOps(nodes=(node,), start=node, end=node)

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """An `Identity` on the host; its readers on the device receive from it."""
        del device
        node = made_node(name, "Identity", [out.end.name], self.host, T=spec.dtype)
        return CopyOps(nodes=(node,), start=node, end=node)

    def host_peak_bytes(self) -> int | None:
        """Unknown: TensorFlow's host allocator holds the tensors."""
        return None

    def release(self) -> None:
        """Nothing is held between steps."""


def made_node(
    name: str, op: str, inputs: list[str], device: str, **types: tf.DType
) -> compat.NodeDef:
    """A node with attributes that are types."""
    node = compat.NodeDef(name=name, op=op, input=inputs, device=device)
    for key, dtype in types.items():
        node.attr[key].type = dtype.as_datatype_enum
    return node
