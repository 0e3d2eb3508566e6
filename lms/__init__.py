"""Train models larger than accelerator memory by swapping tensors to the host.

    from lms import LMSCallback
    model.fit(x, y, callbacks=[LMSCallback()])

`import lms` never imports TensorFlow: names that need it are loaded on first use. Where
TensorFlow is imported already, `import lms` sets its allocator up (`lms.fit.fitted`).
"""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from lms.errors import (
    BudgetError,
    ChangedTensorError,
    HostMemoryError,
    LMSError,
    OutOfMemoryError,
    PlanError,
    UnsupportedError,
    WorkersError,
)

if TYPE_CHECKING:
    from lms.commands.largest import largest
    from lms.emulation import emulate
    from lms.fit.callback import LMSCallback, large_model
    from lms.fit.fitted import fit_in_memory, on_host
    from lms.ir.plan import SwapPlan
    from lms.report.step import StepReport
    from lms.workers.data_parallel import DataParallel
    from lms.workers.joining import join
    from lms.workers.pipeline import pipeline_step
    from lms.workers.stages import cut

__all__ = ["DataParallel", "LMSCallback", "StepReport", "SwapPlan", "emulate"]
__all__ += ["BudgetError", "ChangedTensorError", "HostMemoryError", "LMSError"]
__all__ += ["OutOfMemoryError", "PlanError", "UnsupportedError", "WorkersError"]
__all__ += ["cut", "fit_in_memory", "join", "large_model", "largest", "on_host"]
__all__ += ["pipeline_step"]

_HOMES = {
    "DataParallel": "lms.workers.data_parallel",
    "LMSCallback": "lms.fit.callback",
    "StepReport": "lms.report.step",
    "SwapPlan": "lms.ir.plan",
    "cut": "lms.workers.stages",
    "emulate": "lms.emulation",
    "fit_in_memory": "lms.fit.fitted",
    "join": "lms.workers.joining",
    "large_model": "lms.fit.callback",
    "largest": "lms.commands.largest",
    "on_host": "lms.fit.fitted",
    "pipeline_step": "lms.workers.pipeline",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name == "__version__":
        with suppress(PackageNotFoundError):
            return version("tflms")
        return "of a checkout"
    if name not in _HOMES:
        raise AttributeError(f"module 'lms' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return getattr(home, name, None) or import_module(f"{home.__name__}.{name}")


if "tensorflow" in sys.modules:
    with suppress(Exception):  # the first use of a name raises it
        import_module("lms.fit.fitted")
