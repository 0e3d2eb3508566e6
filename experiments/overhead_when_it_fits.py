"""What does the callback cost when everything fits?

Two models with equal weights, one trained by plain Keras, one with `LMSCallback` and
memory to spare, take turns: `fit` of a few steps each, the order swapped from turn to
turn. The callback looks at the first batch of the first `fit`, finds that it fits, and
puts Keras's own function back; from then on both should take the same time.

Each turn gives one ratio: the median step of the one over that of the other. Claim: the
median of the ratios is at most 1.03. A step begins when Keras begins its batch and ends
when the batch's logs are numbers. Others use the machine too, so the processor's own
seconds (of all threads) are compared as well; they wander less than the clock's.

Known weakness: the first `fit` of each model, in which both trace and the callback
plans, is left out. It is reported by itself.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.ledger import Ledger
from experiments.lines import command_line, read_lines
from lms import LMSCallback
from lms.machine import emulate
from unet3d.model import build_unet

__all__ = ["main"]

_NAME = "overhead_when_it_fits"
_CLAIMED_RATIO = 1.03
_KINDS = ("clock", "processor")
_ORDERS = (("plain", "lms"), ("lms", "plain"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.overhead_when_it_fits`.

    Returns:
        The exit status: 1 if the claim does not hold.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = command_line(_NAME, __doc__, _add_settings).parse_args(words)
    if options.command == "draw":
        return _draw(options.results, options.figure)
    if emulate.device_limit() is None:
        command = [sys.executable, "-m", f"experiments.{_NAME}", *words]
        return emulate.run(command, memory=options.memory).returncode
    _run(options)
    return 0


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="1GiB", help="of the emulated device")
    parser.add_argument("--size", type=int, default=32, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    parser.add_argument("--turns", type=int, default=40, help="of each model")
    parser.add_argument("--steps", type=int, default=4, help="of each turn")


class _Trainee:
    """A model and how long its steps take."""

    def __init__(self, options: Any, callback: keras.callbacks.Callback | None) -> None:
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
    settings = {name: getattr(options, name) for name in names}
    ledger = Ledger(options.results, settings, anew=options.anew)
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


def _draw(results: Path, figure: Path) -> int:
    head, (first, *turns) = read_lines(results)
    medians = {
        name: {
            kind: [statistics.median(turn["seconds"][name][kind]) for turn in turns]
            for kind in _KINDS
        }
        for name in ("plain", "lms")
    }
    ratios = {
        kind: [
            mine / plain
            for mine, plain in zip(
                medians["lms"][kind], medians["plain"][kind], strict=True
            )
        ]
        for kind in _KINDS
    }
    table = Table(title="One training step when everything fits", title_justify="left")
    table.add_column("")
    table.add_column("plain Keras", justify="right")
    table.add_column("LMSCallback", justify="right")
    columns = ("plain", "lms")
    steps = head["settings"]["steps"]
    for kind in _KINDS:
        table.add_row(
            f"{kind}, median of {len(turns)} turns of {steps} steps",
            *(f"{1000 * statistics.median(medians[n][kind]):.1f} ms" for n in columns),
        )
    table.add_row(
        "first step", *(f"{first['seconds'][n]['clock'][0]:.1f} s" for n in columns)
    )
    console = Console()
    console.print(table)
    for kind in _KINDS:
        low, middle, high = statistics.quantiles(ratios[kind], n=4)
        console.print(
            f"Median ratio by the {kind} {middle:.3f}, middle half {low:.3f} to "
            f"{high:.3f}; claimed is at most {_CLAIMED_RATIO}",
            style=None if middle <= _CLAIMED_RATIO else "red",
        )
    ratio = statistics.median(ratios["clock"])
    _plot(ratios, figure)
    console.print(f"Drawn: {figure}")
    return 0 if ratio <= _CLAIMED_RATIO else 1


def _plot(ratios: Mapping[str, Sequence[float]], path: Path) -> None:
    figure = Figure(figsize=(8, 4), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (kind, values), colour in zip(ratios.items(), ("C1", "C0"), strict=True):
        middle = statistics.median(values)
        label = f"{kind}, median {middle:.3f}"
        axes.plot(range(1, len(values) + 1), values, ".", color=colour, label=label)
        axes.axhline(middle, color=colour)
    axes.axhline(_CLAIMED_RATIO, color="grey", ls="--", label=f"{_CLAIMED_RATIO}")
    axes.set(
        xlabel="turn",
        ylabel="step time, with over without",
        title="What LMSCallback costs when everything fits",
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
