"""Shared by all tests: which are skipped aloud, and which process runs them."""

import sys
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_NEEDED = ("tensorflow", "keras", "h5py")  # Keras brings the third


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, Any, pytest.CollectReport]:
    """Skip a module that cannot be imported without TensorFlow, where there is none."""
    report = yield
    if not report.failed:
        return report
    _forget(collector.path)
    if _missing(report.call.excinfo.value) in _NEEDED:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, "Skipped: TensorFlow is missing")
    return report


def _forget(path: Path) -> None:
    """Let others import a module anew: pytest keeps it half made where it failed."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]


def _missing(error: BaseException | None) -> str | None:
    """The package whose absence is the first cause of an error; None if none is."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    package = None if error is None else (error.name or "").partition(".")[0]
    return package if package and find_spec(package) is None else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one test at a time, or a module whose tests share a fixture."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if _shares_fixtures(config.rootpath / file) else nodeid

    return Scheduling(config, log)


@cache
def _shares_fixtures(path: Path) -> bool:
    return 'scope="module"' in path.read_text()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Let slow tests start first, so that no process is left with one at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not {"slow", "long"} & {*item.keywords})
