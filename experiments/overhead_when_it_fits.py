"""What does the callback cost when everything fits?

Two models with equal weights, one trained by plain Keras, one with `LMSCallback` and
memory to spare, take turns: `fit` of a few steps each, the order swapped from turn to
turn. The callback looks at the first batch of the first `fit`, finds that it fits, and
puts Keras's own function back; from then on both should take the same time.

Each turn gives one ratio: the median step of the one over that of the other. Goal: the
median of the ratios is at most 1.03. A step begins when Keras begins its batch and ends
when the batch's logs are numbers. Others use the machine too, so the processor's own
seconds (of all threads) are compared as well; they wander less than the clock's.

Known weakness: the first `fit` of each model, in which both trace and the callback
plans, is left out. It is reported by itself.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.charts import Panel, Series, draw_panels
from experiments.intervals import holds, median_interval
from experiments.ledger import Head, Ledger, Rows
from experiments.plots import COLOURS, source
from experiments.question import DEVICE, Answer, Finding, settings_of

__all__ = ["ANSWER", "main"]

_MOST = 1.03
_KINDS = {"clock": COLOURS["budget"], "processor": COLOURS["threshold"]}
_ORDERS = (("plain", "lms"), ("lms", "plain"))


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="1GiB", help="of the emulated device")
    parser.add_argument("--size", type=int, default=32, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    parser.add_argument("--turns", type=int, default=40, help="of each model")
    parser.add_argument("--steps", type=int, default=4, help="of each turn")


class _Trainee:
    """A model and how long its steps take."""

    def __init__(self, options: Any, callback: Any) -> None:
        import keras

        from unet3d.model import build_unet

        self.model = build_unet(options.size, options.filters, options.depth, seed=0)
        self.model.optimizer.build(self.model.trainable_variables)
        clock = keras.callbacks.LambdaCallback(
            on_train_batch_begin=self._start, on_train_batch_end=self._stop
        )
        self._callbacks = [clock] if callback is None else [callback, clock]
        self._steps: list[tuple[float, float]] = []
        self._started = _clocks()

    def turn(self, volumes: np.ndarray, regions: np.ndarray) -> dict[str, list[float]]:
        """Seconds of the steps of one `fit`, by the clock and of the processor."""
        self._steps = []
        self.model.fit(
            volumes,
            regions,
            batch_size=1,
            verbose="0",
            shuffle=False,
            callbacks=self._callbacks,
        )
        clock, processor = zip(*self._steps, strict=True)
        return {"clock": list(clock), "processor": list(processor)}

    def _start(self, *_: Any, **__: Any) -> None:
        self._started = _clocks()

    def _stop(self, _: int, logs: Any = None) -> None:
        for value in logs.values():
            float(value)
        (clock, processor), ended = self._started, _clocks()
        self._steps.append((ended[0] - clock, ended[1] - processor))


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _run(options: Any) -> None:
    """Only this needs Keras; what is drawn does not."""
    from lms import LMSCallback

    random = np.random.default_rng(0)
    cube = (options.steps, options.size, options.size, options.size)
    volumes = random.standard_normal((*cube, 4)).astype("float32")
    regions = random.integers(0, 2, (*cube, 3)).astype("uint8")
    callback = LMSCallback(verbose=0)
    trainees = {"plain": _Trainee(options, None), "lms": _Trainee(options, callback)}
    first = {name: each.turn(volumes, regions) for name, each in trainees.items()}
    report = callback.report[0]
    if report.swap_count:
        raise RuntimeError("everything must fit, so that nothing is swapped")
    names = ("memory", "size", "filters", "depth", "turns", "steps")
    ledger = Ledger(options.results, settings_of(options, *names), anew=options.anew)
    ledger.once(
        {"turn": 0},
        lambda: {
            "seconds": first,
            "unplanned_peak_bytes": report.unplanned_peak_bytes,
            "budget_bytes": report.budget_bytes,
            "planning_seconds": report.planning_seconds,
        },
    )
    for number in range(1, options.turns + 1):

        def turn(order: Sequence[str] = _ORDERS[number % 2]) -> dict[str, Any]:
            return {"seconds": {n: trainees[n].turn(volumes, regions) for n in order}}

        ledger.once({"turn": number}, turn)


def _finding(head: Head, rows: Rows) -> Finding:
    turns, ratios = rows[1:], _ratios(rows)
    middle = {kind: statistics.median(values) for kind, values in ratios.items()}
    text = (
        "When everything fits, a step with the callback takes "
        f"{middle['clock']:.3f} times as long as one of plain Keras by the clock, and "
        f"{middle['processor']:.3f} times as much of the processor."
    )
    low, _, high = statistics.quantiles(ratios["clock"], n=4)
    text += (
        f" Turns differ by more than that: by the clock half of them lie between "
        f"{low:.3f} and {high:.3f}."
        if high - low > abs(middle["clock"] - 1)
        else ""
    )
    if holds(median_interval(ratios["clock"]), _MOST) is None:
        text += f" Whether it is at most {_MOST} is not decided."
    body: list[list[str]] = []
    for kind, values in ratios.items():
        low, _, high = statistics.quantiles(values, n=4)
        body.append([kind, f"{middle[kind]:.3f}", f"{low:.3f}", f"{high:.3f}"])
    columns = ["time", "median ratio", "lower quartile", "upper quartile"]
    steps = head["settings"]["steps"]
    title = f"The callback over plain Keras, {len(turns)} turns of {steps} steps each"
    return text, (title, columns, body)


def _ratios(rows: Rows) -> dict[str, list[float]]:
    """The callback over plain Keras, turn by turn; the first one traces."""
    return {
        kind: [
            statistics.median(turn["seconds"]["lms"][kind])
            / statistics.median(turn["seconds"]["plain"][kind])
            for turn in rows[1:]
        ]
        for kind in _KINDS
    }


def _goals(_: Head, rows: Rows) -> list[tuple[str, bool | None]]:
    ratios = _ratios(rows)["clock"]
    low, high = interval = median_interval(ratios)
    text = f"a step takes at most {_MOST} times as long by the clock: the median is "
    text += f"{statistics.median(ratios):.3f}, between {low:.3f} and {high:.3f}."
    return [(text, holds(interval, _MOST))]


def _plot(head: Head, rows: Rows, path: Path) -> None:
    series: list[Series] = []
    for kind, values in _ratios(rows).items():
        middle, colour = statistics.median(values), _KINDS[kind]
        points = [(float(i), value) for i, value in enumerate(values, start=1)]
        label = f"{kind}, median {middle:.3f}"
        series.append(Series(points=points, colour=colour, label=label))
        ends = [(1.0, middle), (float(len(values)), middle)]
        series.append(Series(points=ends, colour=colour, marker="", line="-"))
    y = "step time, the callback over plain Keras"
    panel = Panel(x="turn", y=y, series=series, level=_MOST)
    draw_panels(
        [[panel]],
        path,
        title="What the callback costs when everything fits",
        note=f"Dashed: the goal, at most. {source(head)}",
        size=(8, 4.4),
    )


ANSWER = Answer(
    name="overhead_when_it_fits",
    title="What it costs when everything fits",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
    in_device=True,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
