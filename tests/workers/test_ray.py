"""Ray Train starts the workers: the same training function, in a cluster's hands."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers import clustered

WHY = "ray is not installed: pip install -e '.[ray]'"
train: Any = pytest.importorskip("ray.train", reason=WHY)
tensorflow: Any = pytest.importorskip("ray.train.tensorflow", reason=WHY)
cloudpickle: Any = pytest.importorskip("ray.cloudpickle", reason=WHY)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.long]


def test_ray_train_starts_two_workers_with_support_in_each(tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(clustered)  # workers lack tests
    trainer = tensorflow.TensorflowTrainer(
        clustered.train,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    trainer.fit()
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first["size"] == second["size"] == 2
    assert first["moved"] > 0
    assert first["weights"] == second["weights"]
