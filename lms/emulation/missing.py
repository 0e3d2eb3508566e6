"""C++ text of CUDA functions that TensorFlow may look up and the card does not have.

The names come from the wheel: TensorFlow's stubs of CUDA's libraries look each function
up by its name. Functions of cuDNN, cuBLAS and other math libraries do nothing, or count
a launch where they would compute; functions of driver and runtime print and fail.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["missing_functions", "names_in"]

_OWN = r"(__cuda|cudnn|cublasLt|cublas|cuda|cu|nvml|cusparse|cufft|cusolver)[A-Z]\w*"
_SILENT = r"(cudnn|cublas|cufft|cusparse|cusolver)"
# CUPTI asks for the driver's tables when a profile begins, and gives up without them.
# TensorFlow's profiler then records the host's events alone: an emulated card has no
# kernels that it could record.
_NEEDLESS = "cuGetExportTable"
_WORK = r"[Gg]emm|gemv|Matmul$|Forward|Backward|Transform|Reduce|trsm|Execute"

_HEAD = """#include <cstdio>
extern "C" int lms_card_launch();
extern "C" {
"""


def names_in(library: Path) -> list[str]:
    """List functions of CUDA's libraries for which a shared library has stubs."""
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {re.split(r"[ @]", line)[2] for line in shown.stdout.splitlines()}
    return sorted(name for name in names if re.fullmatch(_OWN, name))


def missing_functions(names: Iterable[str]) -> str:
    """Write a C++ source with a weak function for each name.

    Example:
        >>> "cudnnCreate" in missing_functions(["cudnnCreate"])
        True
    """
    return _HEAD + "".join(map(_function, names)) + "}\n"


def _function(name: str) -> str:
    start = f'__attribute__((weak, visibility("default"))) int {name}(void** p)'
    return f"{start} {{ {_body(name)} }}\n"


def _body(name: str) -> str:
    if name == _NEEDLESS:
        return "return 801;"
    if not re.match(_SILENT, name):
        return (
            "static bool said = false; if (!said) std::fprintf(stderr, "
            f'"emulated card: {name} is missing\\n"); said = true; return 801;'
        )
    if re.match(r"\w+?Create", name):  # a handle: any address
        return "static int it; *p = &it; return 0;"
    return "return lms_card_launch();" if re.search(_WORK, name) else "return 0;"
