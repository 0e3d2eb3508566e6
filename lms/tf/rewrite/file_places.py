"""Where swapped tensors wait in a file: each has a place of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from lms.ir.plan import Swap
from lms.storage.swap_file import SwapFile

__all__ = ["FilePlaces"]


class FilePlaces:
    """The places of a plan's tensors in a file.

    Args:
        swaps: Those of the plan; those that wait in a file get a place.
        folder: Where the file is.

    Raises:
        HostMemoryError: If the folder has no room for them.
    """

    def __init__(self, swaps: Sequence[Swap], folder: Path) -> None:
        kept = [swap for swap in swaps if swap.in_file]
        begins = accumulate((swap.size for swap in kept), initial=0)
        self.trouble: str | None = None  # what could not be read or written
        self._places = {s.tensor: at for s, at in zip(kept, begins, strict=False)}
        self._file = SwapFile(folder, sum(swap.size for swap in kept))

    def writing(self, tensor: str, source: np.ndarray) -> Callable[[], None] | None:
        """What writes a tensor's bytes to its place; None if it has none."""
        return self._carrying(self._file.write, tensor, source, "written to")

    def reading(self, tensor: str, into: np.ndarray) -> Callable[[], None] | None:
        """What reads a tensor's bytes from its place; None if it has none."""
        return self._carrying(self._file.read, tensor, into, "read from")

    def _carrying(
        self,
        call: Callable[[int, memoryview], None],
        tensor: str,
        array: np.ndarray,
        done: str,
    ) -> Callable[[], None] | None:
        place = self._places.get(tensor)
        if place is None:
            return None
        return partial(self._carry, call, place, tensor, array, done)

    def _carry(
        self,
        call: Callable[[int, memoryview], None],
        place: int,
        tensor: str,
        array: np.ndarray,
        done: str,
    ) -> None:
        try:
            call(place, array.data)
        except OSError as error:
            self.trouble = (
                f"the swapped tensor {tensor!r} must be {done} the file in "
                f"{str(self._file.folder)!r}, got {error.strerror or error}. Look at "
                "the disk, or name another `swap_folder`."
            )
            raise
