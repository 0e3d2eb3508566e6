"""Travels of a tensor between device and host.

    tensor ──> _CopyFromGpuToHost ──> release
                  │            trigger
                  │               │
    reader <── _CopyFromHostToGpu <┘

Nodes are made here; the rewriter wires them. There is one op that starts a copy and one
that ends when the copy has ended, or yields it. Copies are made by TensorFlow's own ops
for swaps, which Grappler's swapper left: ops of a GPU, so a step stays in one piece.

A copy to the device waits for all that was launched before it. So launches must not run
ahead while a swap-in has its trigger but not yet its tensor:

    trigger, swap-out ──> begin ──> swap-in            takes its room, queues the copy
                            └─────> settled ──> the link after the trigger

`begin` ends in the thread that launches, which then goes on with the swap-in before
what waits for `settled`: room is taken in the order that was planned.

Sources: TensorFlow's `gpu_swapping_kernels.cc` (both copy ops), `gpu_util.cc` (what
copies wait for), `executor.cc` (`inline_ready`: first come, first served).
"""

from dataclasses import dataclass

from lms.tf import compat
from lms.tf.compat import made_node

__all__ = ["CopyOps", "swap_in", "swap_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOps:
    """The ops of one copy.

    Args:
        nodes: All of them.
        start: Starts the copy.
        end: Ends when a swap-out has ended; yields a swap-in.
        settled: What the ops that are ordered after `start` must wait for: that a
            swap-in has its room.
    """

    nodes: tuple[compat.NodeDef, ...]
    start: compat.NodeDef
    end: compat.NodeDef
    settled: compat.NodeDef | None = None


def swap_out(name: str, source: str, dtype: str, device: str) -> CopyOps:
    """A copy into pinned memory."""
    node = made_node(name, "_CopyFromGpuToHost", [source], device, T=dtype)
    return CopyOps(nodes=(node,), start=node, end=node)


def swap_in(name: str, out: CopyOps, dtype: str, device: str) -> CopyOps:
    """A copy from there, queued once it may begin."""
    begin = made_node(f"{name}/begin", "NoOp", [f"^{out.end.name}"], device)
    inputs = [out.end.name, f"^{begin.name}"]
    copy = made_node(name, "_CopyFromHostToGpu", inputs, device, T=dtype)
    settled = made_node(f"{name}/settled", "NoOp", [f"^{begin.name}"], device)
    nodes = (begin, copy, settled)
    return CopyOps(nodes=nodes, start=begin, end=copy, settled=settled)
