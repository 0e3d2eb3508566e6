"""Where TensorFlow is missing, planners and `pytest -m "not tf"` work."""

import re
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parents[1]

HIDDEN = "import sys\nsys.modules.update(tensorflow=None, keras=None)\n"

IMPORT_ALL = """
import importlib, pkgutil, lms
left_out = ("lms.tf", "lms.fit")
left_out += ("lms.commands", "lms.workers")
for module in pkgutil.walk_packages(lms.__path__, "lms."):
    if not module.name.startswith(left_out):
        print(importlib.import_module(module.name).__name__)
"""

COLLECT = """
import pytest
options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, "-m", "not tf"]))
"""

SKIPPED = re.compile(r"^SKIPPED \[\d+\] (\S+):\d+: TensorFlow is missing$", re.M)


def run(code: str) -> str:
    ended = python("-c", HIDDEN + code, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_all_that_is_no_part_of_lms_tf_can_be_imported() -> None:
    imported = run(IMPORT_ALL).split()
    assert {"lms.planning.select", "lms.simulation.executor"} <= set(imported)


@pytest.mark.slow
def test_only_modules_whose_tests_are_all_marked_are_skipped() -> None:
    skipped = [Path(name) for name in SKIPPED.findall(run(COLLECT))]
    tests = [path for path in skipped if path.name.startswith("test_")]
    unmarked = [
        str(path)
        for path in tests
        if not re.search(r"^pytestmark = .*mark\.tf\b", (ROOT / path).read_text(), re.M)
    ]
    assert tests
    assert unmarked == []
