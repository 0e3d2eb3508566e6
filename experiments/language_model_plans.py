"""On published hardware: what does GPT-2 cost in less memory, beside blocks by hand?

GPT-2 small of keras-hub (124 million parameters, Adam, 4 sentences of 1,024 tokens) is
traced, not trained: a step is planned and played by data sheets, as `python -m lms plan
--hardware` does. Ways:

    plain        plain Keras with enough memory: what others are compared to
    by hand      each block within `tf.recompute_grad` (`experiments.by_hand`)
    callback     what `LMSCallback` would do: in 6 GiB, in 4 GiB, and in the bytes that
                 blocks by hand take

Goals: in 6 GiB of a V100 on PCIe a step takes at most 1.4 times plain Keras's. On each
card the callback in 6 GiB takes no more bytes than blocks by hand, and no more time.

A budget is what a step may use at most, with what the allocator loses and a part that
is left free for what is not known of a device; so a plan's peak is below it. What
blocks by hand take is a peak: to run there they would need a larger device.

Known weaknesses: nothing ran. Data sheets are the best that hardware could do: both
ways gain alike. The graph is the one that TensorFlow makes for a CPU.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.charts import Bar, Panel, draw_panels
from experiments.ledger import Head, Ledger, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Answer, Finding, settings_of
from lms.errors import BudgetError
from lms.machine.hardware import preset
from lms.units import GIB, Bytes, format_bytes

__all__ = ["ANSWER", "main"]

_EMULATED = "Nothing ran: the step is traced, planned and played by data sheets."
_CARDS = {
    "v100-pcie": "V100, PCIe 3.0",
    "v100-nvlink": "V100, NVLink 2.0",
    "h100-pcie5": "H100, PCIe 5.0",
}
_SIZES = (6, 4)  # GiB
_GOAL_CARD, _GOAL_SIZE, _GOAL = "v100-pcie", 6, 1.4
_ENOUGH = 1 << 40  # bytes for any step
_SHOWN: Mapping[str, Callable[..., str]] = {
    "peak_bytes": format_bytes,
    "seconds": lambda seconds: f"{seconds * 1e3:.1f} ms",
}
_PLAIN, _BY_HAND, _BESIDE = "plain", "by hand", "callback, as by hand"


def _add_settings(parser: Any) -> None:
    sizes = {"length": 1024, "batch": 4, "width": 768, "depth": 12, "heads": 12}
    for name, size in (sizes | {"words": 50257}).items():
        parser.add_argument(f"--{name}", type=int, default=size)


def _run(options: Any) -> None:
    if find_spec("keras_hub") is None:
        raise SystemExit("keras-hub must be installed: pip install -e '.[zoo]'")
    names = ("length", "batch", "width", "depth", "heads", "words")
    settings = settings_of(options, *names)
    ledger = Ledger(options.results, settings, anew=options.anew)
    own, blocks = _Traced(settings), _Traced(settings, by_hand=True)
    for card in _CARDS:
        own.row(ledger, card, _PLAIN)
        by_hand = blocks.row(ledger, card, _BY_HAND)
        own.row(ledger, card, _BESIDE, by_hand["peak_bytes"])
        for size in _SIZES:
            own.row(ledger, card, _callback_in(size), size * GIB)


def _callback_in(size: int) -> str:
    return f"callback, {size} GiB"


class _Traced:
    """A step that is traced when it is first asked for, and then planned elsewhere.

    Args:
        settings: The model's sizes.
        by_hand: Whether its blocks are checkpointed.
    """

    def __init__(self, settings: Mapping[str, Any], *, by_hand: bool = False) -> None:
        self._settings, self._by_hand = settings, by_hand
        self._subject: Any = None

    def row(
        self, ledger: Ledger, card: str, way: str, budget: Bytes | None = None
    ) -> Row:
        """The step on a card; plain Keras with enough memory if there is no budget."""
        key = {"card": card, "way": way}
        row = ledger.once(key, lambda: self._planned(card, budget))
        print(f"{card}, {way}: {_told(row)}", flush=True)
        return row

    def _planned(self, card: str, budget: Bytes | None) -> dict[str, Any]:
        from lms.commands.forecast import forecast
        from lms.planning.settings import Settings

        hardware = replace(preset(card), memory=_ENOUGH)
        subject = self._on(hardware)
        try:
            found = forecast(subject, Settings(budget=budget))
        except BudgetError as error:
            return {"error": str(error), "least_bytes": error.least_bytes}
        return {
            "error": None,
            "ops": len(subject.workload.graph.ops),
            "budget_bytes": budget,
            "peak_bytes": found.report.predicted_peak_bytes,
            "seconds": found.report.predicted_seconds,
            "swapped_out_bytes": found.report.swapped_out_bytes,
            "twice": found.report.recomputed_ops,
        }

    def _on(self, hardware: Any) -> Any:
        from lms.machine.costs import roofline
        from lms.planning.prefetch import Speeds

        if self._subject is None:
            self._subject = _trace(self._settings, hardware, by_hand=self._by_hand)
        costs = roofline(self._subject.workload.graph, hardware)
        speeds = Speeds(costs=costs, hardware=hardware)
        return replace(self._subject, speeds=speeds)


def _trace(settings: Mapping[str, Any], hardware: Any, *, by_hand: bool) -> Any:
    """Only this needs TensorFlow."""
    from experiments.block_subjects import gpt2
    from experiments.by_hand import checkpoint_blocks
    from lms.commands.forecast import training_of
    from lms.tf.capture.keras_step import batch_specs

    model, batch = gpt2(**settings)
    if by_hand:
        checkpoint_blocks(model)
    model.optimizer.build(model.trainable_variables)
    return training_of(model, batch_specs(batch), hardware=hardware)


def _told(row: Row) -> str:
    if row["error"]:
        return str(row["error"])
    return f"{format_bytes(row['peak_bytes'])}, {row['seconds']:.3f} s"


def _ratio(row: Row, rows: Rows) -> float | None:
    """Its step over plain Keras's on the same card."""
    if row["error"]:
        return None
    return row["seconds"] / _find(rows, row["card"], _PLAIN)["seconds"]


def _find(rows: Rows, card: str, way: str) -> Row:
    return next(row for row in rows if (row["card"], row["way"]) == (card, way))


def _finding(_: Head, rows: Rows) -> Finding:
    row = _find(rows, _GOAL_CARD, _callback_in(_GOAL_SIZE))
    hand = _find(rows, _GOAL_CARD, _BY_HAND)
    plain = _find(rows, _GOAL_CARD, _PLAIN)
    size = format_bytes(plain["peak_bytes"])
    said = f"{_CARDS[_GOAL_CARD]}: plain Keras takes {size}. "
    ratio, by_hand = _ratio(row, rows), _ratio(hand, rows)
    if ratio is None or by_hand is None:
        said += "The step was refused."
    else:
        said += (
            f"With the callback a step fits into {_GOAL_SIZE} GiB and takes "
            f"{ratio:.2f} times as long; with blocks by hand it takes "
            f"{format_bytes(hand['peak_bytes'])} and {by_hand:.2f} times."
        )
    columns = ["card", "way", "peak", "step", "times plain", "moved out", "run twice"]
    body = [_cells(row, rows) for row in rows]
    return said, ("GPT-2 small, predicted", columns, body)


def _cells(row: Row, rows: Rows) -> list[str]:
    names = [_CARDS[row["card"]], row["way"]]
    if row["error"]:
        return [*names, "-", "-", "refused", "-", "-"]
    return [
        *names,
        format_bytes(row["peak_bytes"]),
        f"{row['seconds'] * 1e3:.0f} ms",
        f"{_ratio(row, rows):.2f}",
        format_bytes(row["swapped_out_bytes"]),
        f"{row['twice']:,}",
    ]


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    first = _ratio(_find(rows, _GOAL_CARD, _callback_in(_GOAL_SIZE)), rows)
    text = f"{_CARDS[_GOAL_CARD]}, {_GOAL_SIZE} GiB: at most {_GOAL} times plain"
    got = "refused" if first is None else f"{first:.2f}"
    yield f"{text}, got {got}.", first is not None and first <= _GOAL
    for card, title in _CARDS.items():
        hand = _find(rows, card, _BY_HAND)
        ours = _find(rows, card, _callback_in(_GOAL_SIZE))
        if ours["error"]:
            yield f"{title}: {_GOAL_SIZE} GiB were refused.", False
            continue
        for name, text in (("peak_bytes", "no more bytes"), ("seconds", "no slower")):
            both = ours[name], hand[name]
            told = " and ".join(map(_SHOWN[name], both))
            yield f"{title}: {text} than blocks by hand: {told}.", both[0] <= both[1]


def _plot(head: Head, rows: Rows, path: Path) -> None:
    draw_panels(
        [[_panel(card, title, rows) for card, title in _CARDS.items()]],
        path,
        title="GPT-2 small in less memory: predicted step over plain Keras's",
        note=f"Predicted from data sheets; nothing ran. {source(head)}",
        size=(12, 4.8),
    )


def _panel(card: str, title: str, rows: Rows) -> Panel:
    kinds = {_PLAIN: ("plain", "plain"), _BY_HAND: ("by hand", "by_hand")}
    bars = []
    shown = [row for row in rows if row["card"] == card and not row["error"]]
    for row in sorted(shown, key=lambda row: -row["peak_bytes"]):
        label, colour = kinds.get(row["way"], ("callback", "budget"))
        ratio = _ratio(row, rows) or 0.0
        bars.append(
            Bar(
                label=f"{label}\n{row['peak_bytes'] / GIB:.1f} GiB",
                height=ratio,
                colour=COLOURS[colour],
                text=f"{ratio:.2f}",
            )
        )
    most = max(_ratio(row, rows) or 0.0 for row in rows)
    y = "times plain Keras's step"
    return Panel(title=title, y=y, bars=bars, level=1.0, ylim=(0, 1.15 * most))


ANSWER = Answer(
    name="language_model_plans",
    title="GPT-2 small on published hardware",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
