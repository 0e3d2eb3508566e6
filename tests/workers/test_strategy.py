"""TensorFlow's own strategy of several workers: each worker plans its own card."""

import json
import sys
from pathlib import Path

import pytest

from lms.emulation import emulate
from lms.workers.launching import launch

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def test_workers_of_a_strategy_plan_unlike_budgets_and_have_the_plain_bits(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.workers.strategy_trials", str(tmp_path)]
    environ = emulate.environment("64MiB", cards=2) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    lines = tmp_path / "lines"
    with lines.open("w") as out:
        code = launch(command, workers=2, environ=environ, out=out)
    assert code == 0, lines.read_text()
    found = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2)]
    for worker in found:
        planned = worker["planned"]
        assert planned.pop("changes") > 0
        assert planned.pop("over") <= 0
        assert planned == worker["plain"] == found[0]["plain"]
