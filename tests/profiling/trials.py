"""All commands that need TensorFlow, one after the other in one process."""

import sys
from pathlib import Path

import numpy as np

from lms import LMSCallback
from profiling import op_costs, overhead, step_timeline
from profiling.callback import UtilisationCallback
from tests.profiling.subjects import BUDGET, ROWS, WIDTH, layers

SUBJECT = str(Path(__file__).with_name("subjects.py")) + ":layers"


def fit(folder: str) -> None:
    """Two epochs of four steps, watched in the second one."""
    model, _ = layers()
    data = [np.ones((4 * ROWS, WIDTH), "float32") for _ in range(2)]
    watch = UtilisationCallback(f"{folder}/fit.json", steps=(1, 3), interval=0.02)
    support = LMSCallback("16MiB", verbose=0)  # the data is on the device too
    model.fit(*data, batch_size=ROWS, epochs=2, verbose=0, callbacks=[support, watch])


def main(folder: str) -> None:
    """Write all files into a folder."""
    budget = f"--budget={BUDGET}"
    words = ["--warmup=2", "--steps=4", budget, f"--output={folder}/step.json"]
    words.append("--recompute=never")  # the link is so slow that nothing would move
    assert step_timeline.main([*words, SUBJECT]) == 0
    assert op_costs.main([f"--output={folder}/costs.json", SUBJECT]) == 0
    words = ["--rounds=2", "--steps=2", budget, f"--output={folder}/overhead.json"]
    assert overhead.main([*words, SUBJECT]) == 0
    fit(folder)


if __name__ == "__main__":
    main(sys.argv[1])
