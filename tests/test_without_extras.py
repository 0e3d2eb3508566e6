"""A plain install trains and plans; what it lacks is named with its extra."""

from pathlib import Path
from typing import Any

import pytest

from tests.programs import python

HIDDEN = "sys.modules.update(dict.fromkeys(('matplotlib', 'nibabel', 'scipy')))"


def run(code: str) -> Any:
    root = Path(__file__).parents[1]
    return python("-c", f"import sys; {HIDDEN}; {code}", cwd=root)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("lms.report.style", "figures"),
        ("profiling.drawing", "figures"),
        ("unet3d.data", "unet3d"),
        ("experiments.least_seconds", "unet3d"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(module: str, extra: str) -> None:
    said = run(f"import {module}").stderr.splitlines()[-1]
    assert said.startswith("lms.errors.MissingExtraError: Could not import ")
    assert f"the extra `{extra}` brings it." in said


@pytest.mark.tf
@pytest.mark.slow
def test_lms_needs_no_extra() -> None:
    names = "lms.fit.callback, lms.fit.fitted, lms.commands.plan, lms.commands.doctor"
    workers = "lms.workers.data_parallel, lms.workers.pipeline, unet3d.model"
    ended = run(f"import {names}, {workers}; import experiments.trial")
    assert ended.returncode == 0, ended.stderr
