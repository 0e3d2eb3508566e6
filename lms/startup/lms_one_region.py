"""Make an emulated device's allocator take its memory in one piece, as a GPU's does.

    as it grows      | 2 |  4  |    8    |       16       |  ...     no tensor spans two
    in one piece     |                                          |

TensorFlow's CPU allocator takes memory when it needs more, each time twice as much as
before (`BFCAllocator::Extend`), and never joins these regions. What a program makes
first, a model say, would decide for good how large a tensor can be. So as soon as
TensorFlow has made its devices, and before anything else, the whole limit is asked for
once and given back. The pages are not touched: that costs nothing.

Nothing is imported here but Python's own modules: this file runs at the start of
programs that may not have `lms`. It replaces one private method of TensorFlow's eager
context, `ensure_initialized`: nothing public tells when devices have been made, and to
make them earlier would keep programs from configuring them.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["install"]

_CONTEXT = "tensorflow.python.eager.context"
_MIB = 1 << 20

# What the shape of the large tensor may take before it, and what is lost by rounding.
_LEFT = 4


def install() -> None:
    """Do it in this process, if its CPU is an emulated device; else nothing."""
    if _limit() is None:
        return
    if _CONTEXT in sys.modules:
        _watch(sys.modules[_CONTEXT])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _limit() -> int | None:
    """The device's memory in MiB; what makes no sense is said later, by `lms`."""
    words = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower()
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    return int(limit) if words in ("1", "true") and limit.isdecimal() else None


def _watch(context: ModuleType) -> None:
    """Let the context take the memory when it has made the devices."""
    kind: Any = context.Context
    made: Callable[[Any], None] = kind.ensure_initialized
    if getattr(made, "takes_one_region", False):
        return

    def ensure_initialized(self: Any) -> None:
        is_new = not self._initialized
        made(self)
        if is_new and self._initialized:
            _take(self)

    ensure_initialized.takes_one_region = True  # pyright: ignore[reportFunctionMemberAccess]
    kind.ensure_initialized = ensure_initialized


def _take(context: Any) -> None:
    limit = _limit()
    tf: Any = sys.modules.get("tensorflow")
    if limit is None or limit <= _LEFT or not hasattr(tf, "raw_ops"):
        return
    try:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            tf.raw_ops.Empty(shape=[limit - _LEFT, _MIB], dtype=tf.uint8, init=False)
        context.reset_memory_stats("/device:CPU:0")
    except (tf.errors.OpError, ValueError):
        return  # its regions then come as they do


class _Finder(MetaPathFinder):
    """Finds TensorFlow's context once, to be told when it has been imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module's own spec, whose loader tells."""
        if fullname != _CONTEXT:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads as another loader does, then lets the context be watched."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        """Hand on all else that a loader can do: source, resources."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as the other loader does, then watch it."""
        self._loader.exec_module(module)
        _watch(module)
