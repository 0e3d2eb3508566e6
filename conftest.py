"""What all tests share: without TensorFlow, modules that need it are skipped aloud."""

from collections.abc import Generator
from importlib.util import find_spec

import pytest

_NEEDED = ("tensorflow", "keras")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that cannot be imported without TensorFlow, where there is none."""
    report = yield
    missing = [name for name in _NEEDED if find_spec(name) is None]
    said = str(report.longrepr)
    named = any(f"No module named '{name}" in said for name in missing)
    # A module whose first import failed is left half made to those after it.
    follows = bool(missing) and "cannot import name" in said and "lms/tf" in said
    if report.failed and (named or follows):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, "Skipped: TensorFlow is missing")
    return report
