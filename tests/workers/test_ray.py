"""Ray Train starts the workers: the same training function, in a cluster's hands."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

WHY = "ray is not installed: pip install -e '.[ray]'"
train: Any = pytest.importorskip("ray.train", reason=WHY)
tensorflow: Any = pytest.importorskip("ray.train.tensorflow", reason=WHY)
cloudpickle: Any = pytest.importorskip("ray.cloudpickle", reason=WHY)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.long]


def _train(settings: dict[str, Any]) -> None:
    import lms

    workers = lms.join()
    import hashlib

    import keras
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(0).random((16, 32, 32, 3)).astype("float32")
    y = x.mean((1, 2, 3))[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shard(workers.size, workers.rank).batch(4, drop_remainder=True)
    keras.utils.set_random_seed(1 + workers.rank)
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for _ in range(6):
        model.add(keras.layers.Conv2D(16, 3, padding="same", activation="relu"))
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(1e-3 * workers.size), "mse")
    support = lms.LMSCallback(budget=settings["budget"], verbose=0)
    callbacks = [lms.DataParallel(workers), support]
    model.fit(data, epochs=2, verbose="0", callbacks=callbacks)
    weights = b"".join(v.numpy().tobytes() for v in model.weights)
    found = {
        "rank": workers.rank,
        "size": workers.size,
        "swaps": support.report[0].swap_count,
        "twice": len(support.report[0].plan.recomputed),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    path = Path(settings["folder"]) / f"{workers.rank}.json"
    path.write_text(json.dumps(found))


def test_ray_train_starts_two_workers_with_support_in_each(tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers lack tests
    trainer = tensorflow.TensorflowTrainer(
        _train,
        train_loop_config={"budget": "1400KiB", "folder": str(tmp_path)},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    trainer.fit()
    files = (tmp_path / f"{rank}.json" for rank in range(2))
    first, second = (json.loads(file.read_text()) for file in files)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["size"] == second["size"] == 2
    assert first["swaps"] + first["twice"] > 0
    assert first["weights"] == second["weights"]
