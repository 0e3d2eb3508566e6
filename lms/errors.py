"""Errors of lms: `LMSError`, and a subclass for each way in which a caller can react.

Every subclass is also a built-in error, so code that does not know lms catches it
too. A message says the rule, the value and the next step.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

__all__ = ["BudgetError", "ChangedTensorError", "HostMemoryError", "LMSError"]
__all__ += [
    "MissingExtraError",
    "OutOfMemoryError",
    "PlanError",
    "UnsupportedError",
    "WorkersError",
    "extra",
]


class LMSError(Exception):
    """Any error that lms raises on purpose."""

    shown: Any = None  # the refused step, for a page


class BudgetError(LMSError, ValueError):
    """No plan keeps the step within its memory budget.

    Args:
        message: The rule, the budget and the next step, or makes them of the least
            budget where the text is read first.
        op_name: The op whose working set is too large, if one op is the cause.
        least_bytes: The least budget that works, in bytes, if it is known.
        bounds: Bounds of the least budget that draw together until they are equal. The
            search for it goes no further than somebody reads.

    Example:
        >>> error = BudgetError("Too little.", op_name="conv1", least_bytes=4096)
        >>> error.op_name, error.least_bytes
        ('conv1', 4096)
    """

    def __init__(
        self,
        message: str | Callable[[int], str],
        *,
        op_name: str | None = None,
        least_bytes: int | None = None,
        bounds: Iterator[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(message)
        self.is_certain = False  # plain TensorFlow runs out of memory, too
        self.is_final = False  # no rewrite helps, and no least budget was searched
        self.op_name = op_name
        self._is_none = least_bytes is None  # 0 bytes may be the least, too
        self._low = self._high = least_bytes or 0
        self._rest = bounds or iter(())
        self._change: Callable[[int], int] = int
        self._lock = RLock()  # a search has one reader at a time
        self._narrow()

    @property
    def least_bytes(self) -> int | None:
        """The least budget that works, in bytes, if it is known."""
        self._search()
        least = self._change(self._low)
        return None if self._is_none and not least else least

    def exceeds(self, other: "int | BudgetError") -> bool:
        """Tell whether the least budget is known and above a size, or another's."""
        if isinstance(other, int):
            other = BudgetError("", least_bytes=other)
        while True:
            low, high = self._change(self._low), self._change(self._high)
            least, most = other._change(other._low), other._change(other._high)
            if low > most or high <= least:
                return low > most
            self._narrow()
            other._narrow()

    def restate(
        self, change: Callable[[int], int], message: Callable[[int], str] | None = None
    ) -> None:
        """Name another least budget, and make the message of the present one.

        `change` gets the present least budget, or 0 if it is unknown, and never falls.
        """
        before = self._change

        def after(least: int) -> int:
            return change(before(least))

        def said(least: int) -> str:
            assert message is not None
            return message(before(least))

        self._change = after
        if message is not None:
            self.args = (said,)

    def _search(self) -> None:
        while self._low < self._high:
            self._narrow()
        self._rest = iter(())  # lets go of what was searched

    def _narrow(self) -> None:
        """Search on; the upper bound stays where a search was interrupted."""
        with self._lock:
            bounds = next(self._rest, (self._high, self._high))
            self._low, self._high = bounds

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __str__(self) -> str:
        (message,) = self.args
        if callable(message):
            self._search()
            self.args = (message(self._low),)
        return self.args[0]

    def __reduce__(self) -> Any:
        least = self.least_bytes or 0
        known = {"_low": least, "_high": least, "_rest": iter(()), "_change": int}
        left = {k: v for k, v in self.__dict__.items() if k != "_lock"}
        return type(self), (str(self),), left | known


class PlanError(LMSError, ValueError):
    """A plan contradicts its graph."""


class UnsupportedError(LMSError, ValueError):
    """A model, strategy or signature that lms does not handle yet."""


class HostMemoryError(LMSError, MemoryError):
    """The host has too little memory for the tensors to swap out."""


class OutOfMemoryError(LMSError, MemoryError):
    """A planned step ran out of device memory, and replanning did not help."""


class ChangedTensorError(LMSError, RuntimeError):
    """A moved tensor came back with other bytes, or an op's second run made others."""


class WorkersError(LMSError, RuntimeError):
    """Workers cannot train together: one is missing or differs from the others."""


class MissingExtraError(LMSError, ImportError):
    """A package is missing that an extra of this distribution brings."""


@contextmanager
def extra(name: str) -> Generator[None, None, None]:
    """Raise `MissingExtraError` for a missing import that the extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"Could not import {error.name!r}: the extra `{name}` brings it. In the "
            f"folder of this library: pip install '.[{name}]'."
        ) from error
