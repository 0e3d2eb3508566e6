"""Errors of lms: `LMSError`, and a subclass for each way in which a caller can react.

Every subclass is also a built-in error, so code that does not know lms catches it
too. A message says the rule, the value and the next step.
"""

from collections.abc import Generator
from contextlib import contextmanager

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


class BudgetError(LMSError, ValueError):
    """No plan keeps the step within its memory budget.

    Args:
        message: The rule, the budget and the next step.
        op_name: The op whose working set is too large, if one op is the cause.
        least_bytes: The least budget that works, in bytes, if it is known.

    Example:
        >>> error = BudgetError("Too little.", op_name="conv1", least_bytes=4096)
        >>> error.op_name, error.least_bytes
        ('conv1', 4096)
    """

    def __init__(
        self,
        message: str,
        *,
        op_name: str | None = None,
        least_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.is_certain = False  # plain TensorFlow runs out of memory, too
        self.op_name = op_name
        self.least_bytes = least_bytes


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
