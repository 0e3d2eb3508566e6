"""Python imports this at its start, where `lms.machine.emulate.run` put its folder.

It works where `lms` itself cannot be imported. Another `sitecustomize` on the path is
run as if this one were not there.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import lms_one_region

_HERE = Path(__file__).parent.resolve()


def _run_the_next() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


lms_one_region.install()
_run_the_next()
