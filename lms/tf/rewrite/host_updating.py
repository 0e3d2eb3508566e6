"""An update that the host does: it takes gradients, and changes its own arrays.

device: gradient ──copy──> buffer ─┐
rows of w, m, v ───────────────────┴─> arithmetic ──> rows of w, m, v
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lms.ir.graph import HostUpdate
from lms.tf.host_arithmetic import updated
from lms.tf.host_variables import Journal
from lms.tf.rewrite.host_store import HostStore, as_bytes

__all__ = ["HostUpdating"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUpdating:
    """The update of some rows.

    Args:
        name: The op's.
        update: What is computed.
        read: The rows that it begins with, by the names of their values.
        written: The rows that get new values.
        store: What carries gradients to the host.
        journal: Keeps what is written over.
    """

    name: str
    update: HostUpdate
    read: Mapping[str, np.ndarray]
    written: Mapping[str, np.ndarray]
    store: HostStore
    journal: Journal

    def run(self, *given: np.ndarray) -> list[object]:
        """Do it, with the op's inputs."""
        values = dict(self.read)
        for name, value in zip(self.update.given, given, strict=True):
            is_large = value.nbytes >= self.update.size
            values[name] = self._copied(name, value) if is_large else value
        found = updated(self.update, values)
        for name, part in self.written.items():
            self.journal.note(as_bytes(part))
            np.copyto(part, found[name])
        return []

    def _copied(self, tensor: str, value: np.ndarray) -> np.ndarray:
        buffer, copy = np.empty_like(value), f"{self.name}/{tensor}"
        into = as_bytes(buffer)
        self.store.carry(copy, tensor, into, as_bytes(value), to_device=False)
        self.store.end(copy)
        return buffer
