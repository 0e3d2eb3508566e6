"""Draw the figure of docs/many_devices.md: loose groups through faults.

python docs/many_devices.py            trains twice for five minutes, and draws

Eight workers in four groups train a small classifier on this machine, once undisturbed
and once with a worker killed or stopped for good every thirty seconds. Nothing is left
out: steps count from the launcher's start on. Processor time is that of the launcher
and all that it started. The loss is that of unseen data, of what was pushed last.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).resolve().parent
WORKERS, GROUPS, SECONDS, EVERY = 8, 4, 300.0, 30.0
WIDTH, CLASSES, BATCH, STEPS = 32, 8, 64, 1 << 30
FAULTS = (signal.SIGKILL, signal.SIGSTOP)


def main(folder: str = "") -> int:
    """Run both, and draw; or be a worker that writes its steps to a folder."""
    if folder:
        return train(Path(folder))
    found = [run(every) for every in (0.0, EVERY)]
    steps = [one["steps"] for one in found]
    work = [one["steps"] / one["cpu"] for one in found]
    losses = [one["loss"] for one in found]
    told = (
        f"{len(found[1]['faults'])} faults: {steps[1] / steps[0]:.1%} of the steps, "
        f"{work[1] / work[0]:.1%} for each second of a core, loss {losses[1]:.4f} and "
        f"{losses[0]:.4f}"
    )
    sys.stdout.write(f"{told}; load {[round(one['load']) for one in found]}\n")
    draw(found, told)
    return 0


def data(seed: int, count: int) -> tuple[Any, Any]:
    """Points, and classes of a linear teacher with noise."""
    import numpy as np

    teacher = np.random.default_rng(0).normal(size=(WIDTH, CLASSES)) / WIDTH**0.5
    values = np.random.default_rng(seed)
    x = values.normal(size=(count, WIDTH)).astype("float32")
    return x, (2 * x @ teacher + values.gumbel(size=(count, CLASSES))).argmax(1)


def network() -> Any:
    """The classifier."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(128, "relu") for _ in range(2)]
    ends = keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)
    model = keras.Sequential([ends[0], *layers, ends[1]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-4), loss)
    return model


def train(folder: Path) -> int:
    """Be a worker, until it is ended; say twice a second how many steps were made."""
    with (folder / str(os.getpid())).open("w", buffering=1) as log:
        import keras
        import tensorflow as tf

        import lms

        workers = lms.join()

        class Log(keras.callbacks.Callback):
            steps, said = 0, 0.0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                del batch, logs
                self.steps += 1
                if time.time() - self.said > 0.5:
                    self.said = time.time()
                    log.write(f"{self.said} {self.steps}\n")

        rows = tf.data.Dataset.from_tensor_slices(data(os.getpid(), 500 * BATCH))
        callbacks = [lms.DataParallel(workers), Log()]
        given: Any = {"steps_per_epoch": STEPS, "verbose": 0, "callbacks": callbacks}
        network().fit(rows.repeat().batch(BATCH), **given)
    return 0


def run(every: float) -> dict[str, Any]:
    """Train once, with a fault every `every` seconds, or with none for 0."""
    folder = Path(tempfile.mkdtemp())
    own = [sys.executable, str(Path(__file__).resolve()), str(folder)]
    groups = ["-n", str(WORKERS), "--groups", str(GROUPS), "--"]
    start, chosen = time.time(), random.Random(1)
    launcher = psutil.Popen([sys.executable, "-m", "lms", "launch", *groups, *own])
    faults: list[tuple[float, str]] = []
    cpu: dict[tuple[int, float], float] = {}
    load: list[float] = []
    while (now := time.time() - start) < SECONDS:
        time.sleep(0.5)
        load.append(os.getloadavg()[0])
        alive: list[int] = []
        for one in [launcher, *launcher.children(recursive=True)]:
            try:
                times = one.cpu_times()
                cpu[one.pid, one.create_time()] = times.user + times.system
                if one.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    alive.append(one.pid)
            except psutil.NoSuchProcess:
                continue
        if every and now >= every * (len(faults) + 1):
            number = FAULTS[len(faults) % 2]
            hit = [pid for pid in sorted(alive) if (folder / str(pid)).exists()]
            os.kill(chosen.choice(hit), number)
            faults.append((now, number.name))
    (path,) = Path("/dev/shm").glob(f"tflms-launch-{launcher.pid}-*")
    kept = path.with_name(f"{path.name}-kept")
    shutil.copy(path, kept)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait()
    loss = loss_of(kept.name.removeprefix("tflms-"))
    kept.unlink()
    logs = [
        [(float(at) - start, int(steps)) for at, steps in map(str.split, lines)]
        for lines in (log.read_text().splitlines() for log in folder.iterdir())
    ]
    logs = [[row for row in log if row[0] <= SECONDS] for log in logs]
    steps = sum(log[-1][1] for log in logs if log)
    found = {"steps": steps, "cpu": sum(cpu.values()), "load": sum(load) / len(load)}
    return {**found, "faults": faults, "logs": logs, "loss": loss}


def loss_of(buffer: str) -> float:
    """The loss of what was pushed last, by a process of its own."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import many_devices as own\n"
        "from lms.workers.groups import Groups, Nesterov\n"
        "model = own.network()\n"
        "values = [v.value for v in model.variables if v.value.dtype.is_floating]\n"
        "Groups(sys.argv[1], Nesterov(), values).begin()\n"
        "print(model.evaluate(*own.data(3, 60000), batch_size=1000, verbose=0))"
    )
    words = [sys.executable, "-c", code, buffer, str(FOLDER)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return json.loads(said.splitlines()[-1])


def draw(found: list[dict[str, Any]], told: str) -> None:
    """Workers that make steps, over time, with each fault; and all steps so far."""
    from lms.report import style

    title = "Eight workers in four loose groups, a fault every 30 s"
    figure = style.new_figure(10, 5.6, title=title, note=told)
    above, below = figure.subplots(2, 1, sharex=True)
    seconds = range(int(SECONDS) + 1)
    colours = (style.MUTED, style.VERMILION)
    for one, colour, name in zip(
        found, colours, ("undisturbed", "faults"), strict=True
    ):
        spans = [[at for at, _ in log] for log in one["logs"]]
        busy = [
            sum(any(s - 2 < at <= s for at in own) for own in spans) for s in seconds
        ]
        done = [
            sum(max((n for at, n in log if at <= s), default=0) for log in one["logs"])
            for s in seconds
        ]
        above.step(seconds, busy, where="post", color=colour, label=name)
        below.plot(seconds, done, color=colour)
    for at, name in found[1]["faults"]:
        marker = {"SIGKILL": "x", "SIGSTOP": "s"}[name]
        above.plot([at], [8.6], marker=marker, color=style.INK, clip_on=False)
    above.set_ylabel("workers that make steps")
    above.set_title("x killed, ■ stopped for good", loc="left", fontsize=style.FONT)
    above.set_ylim(0, 9)
    above.legend(frameon=False, loc="lower right", ncols=2)
    below.set_ylabel("steps of all workers")
    below.set_xlabel("seconds since the launcher was started")
    for axes in (above, below):
        style.calm(axes)
        axes.set_xlim(0, SECONDS)
    figure.set_layout_engine("constrained", rect=(0.01, 0.05, 0.98, 0.86))
    style.save(figure, FOLDER / "many_devices_faults.png")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
