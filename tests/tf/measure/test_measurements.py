"""A process finds the measurements and plans of an earlier process."""

from pathlib import Path

import pytest

from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

TRIAL = "tests.tf.trials:train_with_cache"


def test_a_second_run_measures_and_plans_nothing(
    worker: Worker, tmp_path: Path
) -> None:
    first = worker.ask(TRIAL, memory="64MiB", folder=str(tmp_path))
    assert first["timed"] > 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["measured", "plans"]
    again = worker.ask(TRIAL, memory="64MiB", folder=str(tmp_path))
    assert again == {**first, "timed": 0}
