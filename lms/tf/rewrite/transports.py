"""Travels of a tensor between device and host.

    on the device                            by send and receive

    tensor ──> _CopyFromGpuToHost            tensor ──> _Send ··> _Recv @host ──> token
                  │            trigger                    trigger   │               :
                  │               │                          │    _Send      ends before
    reader <── _CopyFromHostToGpu <┘         reader <── _Recv <┘ <··┘         `release`

A transport makes nodes; the rewriter wires them. Both have one op that starts a copy
and one that ends when the copy has ended, or yields it.

A copy to the device waits for all that was launched before it. So launches must not run
ahead while a swap-in has its trigger but not yet its tensor:

    trigger, swap-out ──> begin ──> swap-in            takes its room, queues the copy
                            └─────> settled ──> the link after the trigger

`begin` ends in the thread that launches, which then goes on with the swap-in before
what waits for `settled`: room is taken in the order that was planned.

Sources: TensorFlow's `gpu_swapping_kernels.cc` (both copy ops), `gpu_util.cc` (what
copies wait for), `executor.cc` (`inline_ready`: first come, first served).
"""

from dataclasses import dataclass, replace
from typing import Protocol

import tensorflow as tf

from lms.tf import compat

__all__ = [
    "CopyOps",
    "DeviceCopy",
    "SendReceive",
    "Transport",
    "made_node",
    "transport_to",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOps:
    """The ops of one copy.

    Args:
        nodes: All of them.
        start: Starts the copy.
        end: Ends when a swap-out has ended; yields a swap-in.
        settled: What the ops that are ordered after `start` must wait for: that a
            swap-in has its room.
        held: Yields the tensor on the host, where another op than `end` does.
    """

    nodes: tuple[compat.NodeDef, ...]
    start: compat.NodeDef
    end: compat.NodeDef
    settled: compat.NodeDef | None = None
    held: compat.NodeDef | None = None


class Transport(Protocol):
    """Makes the nodes of one tensor's travel."""

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """The ops that copy `source` to the host."""
        ...

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """The ops that copy a tensor in."""
        ...


class DeviceCopy:
    """Swaps by TensorFlow's own ops for them, which Grappler's swapper left behind.

    Both are ops of a GPU, so a step stays in one piece: all control edges are ordinary.
    """

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """A copy into pinned memory."""
        node = made_node(name, "_CopyFromGpuToHost", [source], device, T=spec.dtype)
        return CopyOps(nodes=(node,), start=node, end=node)

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """A copy from there, queued once it may begin."""
        return _begun(
            made_node(name, "_CopyFromHostToGpu", [out.end.name], device, T=spec.dtype),
            out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceive:
    """Swaps by explicit sends and receives: for a TensorFlow without the copy ops.

    A receive may have control inputs. That a swap-out has ended the device learns by a
    token that lies in the host's memory at both ends: no stream carries it, as one
    would carry a control edge between devices, behind all copies under way.

    Args:
        host: Full name of the host device.
    """

    host: str

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """A send to the host, and a token that comes back."""
        there = self._pair(name, source, spec.dtype, device, self.host)
        held = there[1]
        token = made_node(
            f"{name}/shape",
            "Shape",
            [held.name],
            self.host,
            T=spec.dtype,
            out_type=tf.int32,
        )
        back = self._pair(
            f"{name}/token", token.name, tf.int32, self.host, device, kind="_Host"
        )
        return CopyOps(
            nodes=(*there, token, *back), start=there[0], end=back[1], held=held
        )

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """A send to the device, received once it may begin."""
        assert out.held is not None
        send, receive = self._pair(name, out.held.name, spec.dtype, self.host, device)
        copy = _begun(receive, out)
        return replace(copy, nodes=(send, *copy.nodes))

    def _pair(
        self,
        name: str,
        source: str,
        dtype: tf.DType,
        sender: str,
        receiver: str,
        *,
        kind: str = "_",
    ) -> tuple[compat.NodeDef, compat.NodeDef]:
        """A send of a tensor, and the receive of it, which has the name."""
        send = made_node(f"{name}/send", f"{kind}Send", [source], sender, T=dtype)
        receive = made_node(name, f"{kind}Recv", [], receiver, tensor_type=dtype)
        for node in (send, receive):
            node.attr["tensor_name"].s = name.encode()
            node.attr["send_device"].s = sender.encode()
            node.attr["recv_device"].s = receiver.encode()
            node.attr["send_device_incarnation"].i = 0  # the runtime fills it in
            node.attr["client_terminated"].b = False
        return send, receive


def _begun(copy: compat.NodeDef, out: CopyOps) -> CopyOps:
    """A swap-in that is launched when `start` has ended, and before `settled` is."""
    begin = made_node(f"{copy.name}/begin", "NoOp", [f"^{out.end.name}"], copy.device)
    copy.input.append(f"^{begin.name}")
    settled = made_node(f"{copy.name}/settled", "NoOp", [f"^{begin.name}"], copy.device)
    return CopyOps(nodes=(begin, copy, settled), start=begin, end=copy, settled=settled)


def transport_to(host: str) -> Transport:
    """The transport from a GPU to its host, by the host's full name."""
    if compat.has_op("_CopyFromGpuToHost") and compat.has_op("_CopyFromHostToGpu"):
        return DeviceCopy()
    return SendReceive(host=host)


def made_node(
    name: str, op: str, inputs: list[str], device: str, **types: tf.DType
) -> compat.NodeDef:
    """A node with attributes that are types."""
    node = compat.NodeDef(name=name, op=op, input=inputs, device=device)
    for key, dtype in types.items():
        node.attr[key].type = dtype.as_datatype_enum
    return node
