"""How long does a training wait for its first step?

Before it, Keras traces the model. With the callback and less memory than the step
needs, ops are measured and a plan is made as well. Models of `experiments.zoo` are
trained in processes and devices of their own, three ways in turn:

    plain   Keras alone, in a device with plenty
    cold    with a budget of 0.8 times plain's peak, and nothing kept from earlier runs
    warm    the same once more, with what the cold run has kept

Each round gives two ratios: the seconds until the first step is done over plain's.
Goals: in the median of the rounds, the callback adds at most as much as Keras takes
itself (cold, 2.0), and half of that where a training like it ran before (warm, 1.5).

Known weakness: the machine is shared, and a round's three processes may not find it
equally busy; ratios are of runs that follow each other.
"""

import shutil
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.charts import Bar, Panel, draw_panels
from experiments.ledger import Head, Ledger, Rows
from experiments.plots import COLOURS, source
from experiments.question import DEVICE, Answer, Finding, settings_of
from experiments.runner import run_trial
from experiments.zoo_names import NAMES, SMALL_NAMES, TITLES
from lms.units import MIB

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "first_step"
_ENOUGH = 6144 * MIB
_MOST = {"cold": 2.0, "warm": 1.5}
_MODELS = (
    "resnet50",
    "densenet121",
    "xception",
    "efficientnetb0",
    "vgg16",
    "augmented",
    "mobilenetv3small",
    "autoencoder",
    "diffusion",
    "gan",
)


def _add_settings(parser: Any) -> None:
    known = [*NAMES, *SMALL_NAMES]
    parser.add_argument("--models", nargs="+", choices=known, default=_MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.8, help="of plain's peak")


def _run(options: Any) -> None:
    ledger = Ledger(options.results, settings_of(options, "share"), anew=options.anew)
    console = Console()
    for number in range(1, options.rounds + 1):
        for model in options.models:
            key = {"model": model, "round": number}
            ledger.once(key, lambda key=key: _round(key, options.share, console))


def _round(key: Mapping[str, Any], share: float, console: Console) -> dict[str, Any]:
    cache = _FOLDER / "kept"
    shutil.rmtree(cache, ignore_errors=True)
    found: dict[str, Any] = {}
    for way in ("plain", *_MOST):
        flags = [f"--model={key['model']}"]
        if way != "plain":
            budget = int(found["plain"]["peak_bytes"] * share) // MIB
            flags += [f"--budget={budget}MiB", f"--cache={cache.absolute()}"]
        trial = run_trial(
            f"{key['model']} {way} {key['round']}",
            memory=_ENOUGH,
            command=("experiments.first_step_trial",),
            flags=flags,
            folder=_FOLDER,
            console=console,
        )
        if trial.result is None:
            raise RuntimeError(f"{trial.name}: {trial.error}")
        found[way] = trial.result
    return {"ways": found}


def _seconds(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """Of the rounds, by model and way."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        ways = found.setdefault(row["model"], defaultdict(list))
        for way, result in row["ways"].items():
            ways[way].append(result["first_seconds"])
    return found


def _ratios(rows: Rows) -> dict[str, dict[str, float]]:
    """Over plain Keras, in the median of the rounds, by way and model."""
    return {
        way: {
            model: statistics.median(
                mine / plain
                for mine, plain in zip(ways[way], ways["plain"], strict=True)
            )
            for model, ways in _seconds(rows).items()
        }
        for way in _MOST
    }


def _finding(_: Head, rows: Rows) -> Finding:
    ratios = _ratios(rows)
    cold, warm = ([*ratios[way].values()] for way in _MOST)
    text = (
        f"The first step of {len(cold)} models is done after "
        f"{statistics.median(cold):.2f} times as long as with plain Keras in the "
        f"median, at most {max(cold):.2f}; where a training like it ran before, "
        f"{statistics.median(warm):.2f} times, at most {max(warm):.2f}."
    )
    body = [
        [
            TITLES[model],
            *(f"{statistics.median(ways[way]):.1f} s" for way in ("plain", *_MOST)),
            *(f"{ratios[way][model]:.2f}" for way in _MOST),
        ]
        for model, ways in _seconds(rows).items()
    ]
    columns = ["model", "plain", "cold", "warm", "cold / plain", "warm / plain"]
    rounds = max(row["round"] for row in rows)
    title = f"Seconds until the first step is done, median of {rounds} rounds"
    return text, (title, columns, body)


def _goals(_: Head, rows: Rows) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for way, values in _ratios(rows).items():
        worst = max(values, key=lambda model: values[model])
        most = values[worst]
        text = f"{way}: at most {_MOST[way]} times plain Keras's: {most:.2f} ({worst})."
        found.append((text, most <= _MOST[way]))
    return found


def _plot(head: Head, rows: Rows, path: Path) -> None:
    colours = {"cold": COLOURS["threshold"], "warm": COLOURS["budget"]}
    panels = [
        Panel(
            title=f"{way}: " + ("nothing kept" if way == "cold" else "kept before"),
            y="over plain Keras",
            bars=[
                Bar(
                    label=_broken(TITLES[model]),
                    height=ratio,
                    colour=colours[way],
                    text=f"{ratio:.2f}",
                )
                for model, ratio in values.items()
            ],
            level=_MOST[way],
        )
        for way, values in _ratios(rows).items()
    ]
    draw_panels(
        [[panel] for panel in panels],
        path,
        title="How long the first step takes",
        note=f"Dashed: the goal, at most. {source(head)}",
        size=(11.5, 7),
    )


def _broken(title: str) -> str:
    """A model's name in two lines."""
    if " " in title:
        return title.replace(" ", "\n")
    return title.replace("Net", "\nNet", 1)


ANSWER = Answer(
    name="first_step",
    title="How long the first step waits",
    emulated=DEVICE,
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
