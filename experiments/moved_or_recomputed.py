"""Over a slow link, in half of the memory: what does a step cost, in which way?

GPT-2, BERT and ViT of keras-hub, the case study's 3D U-Net and ResNet50, all small and
with random weights, train in a device of half of what plain Keras took:

    plain        plain Keras in a device with enough memory: what others are compared to
    budget       the callback: moves tensors, or runs ops twice, whatever is faster
    cheap        the same with `recompute="cheap"`: no product or convolution runs twice
    threshold    IBM's rule, tuned automatically for 0.9 of the device, or for less
                 where that fails
    by hand      each block of the network within `tf.recompute_grad`, as a careful user
                 writes it; in a device with enough memory, whatever it takes
    remat        within `keras.RematScope`, all layers listed that keep no state; the
                 same device
    half floats  under Keras's policy `mixed_bfloat16`; the same device. It changes
                 numbers, and a CPU has no fast units for it: its peak says more than
                 its time

The link is as slow against this machine's computing as PCIe 3.0 x16 is against a V100,
model by model:

    rate = the published rate * a plain step on a V100 / a plain step here

The step on a V100 is the one that `python -m lms plan --hardware v100-pcie` predicts,
from data sheets. Each way is a process on one and the same core, which runs one op at a
time, as a GPU does. All ways of a model take turns, step by step, so what disturbs one
disturbs all; a ratio is of a step and plain Keras's of the same round. Others who use
the core can only make a step slower: so each way's fastest step is compared as well. Op
determinism is on, seeds are fixed: losses of all steps are compared with plain Keras's,
bit for bit.

Goals, of medians: with the callback a step takes at most 1.2 times plain Keras's of
transformers, 1.1 times of the others, and no longer than by hand; losses are equal.

Known weaknesses: ResNet50's batch normalisation adds up three gradients, in an order
that plain Keras does not fix and planned steps do: on two cores, run by run, losses
were equal; on one they are not. The V100 is predicted and was not there. A V100 starts
ops ahead and copies beside them, while copies here take time of the only core. Models
are small: a V100 would wait for the start of their ops most of the time, so the links
are faster than those of large models would be.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.contests import ENOUGH, RULE_SHARES, Entrant, Place, compete
from experiments.ledger import Row
from experiments.moved_or_recomputed_finding import MODELS, finding, goals, plot
from experiments.question import LINK, Answer, settings_of
from experiments.quiet import quiet_median
from experiments.runner import Book
from experiments.servers import LATENCY, SERVERS
from lms.machine.hardware import LinkRates, preset
from lms.units import MIB, Seconds, format_bytes

__all__ = ["ANSWER", "link_rate", "main"]

_FOLDER = Path("build") / "experiments" / "moved_or_recomputed"
_CARD = SERVERS["x86"].hardware
_FEW_STEPS = 5  # to learn what plain Keras takes
_IDLE_STEPS = 3  # the first ones initialise
_OF_KERAS_HUB = ("gpt2", "bert", "vit")

_ENTRANTS = (
    Entrant(name="plain", way="plain", is_free=True),
    Entrant(name="budget", way="budget"),
    Entrant(name="cheap", way="budget", flags=("--recompute=cheap",)),
    Entrant(name="threshold", way="threshold", shares=RULE_SHARES),
    Entrant(name="by hand", way="by_hand", is_free=True),
    Entrant(name="remat", way="remat:list_of_layers", is_free=True),
    Entrant(name="half floats", way="mixed:mixed_bfloat16", is_free=True),
)


def link_rate(*, predicted: Seconds, measured: Seconds) -> float:
    """Bytes per second at which copying weighs as much against computing as there.

    Args:
        predicted: A plain step on the card.
        measured: The same step here.

    Example:
        >>> link_rate(predicted=0.01, measured=1.0) / 1e6  # 100 times less than 12 GB/s
        120.0
    """
    return preset(_CARD).h2d * predicted / measured


def _add_settings(parser: Any) -> None:
    parser.add_argument("--models", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--steps", type=int, default=15, help="of each, that count")
    parser.add_argument("--seed", type=int, default=0)
    text = "arguments of the models' functions, such as size=16"
    parser.add_argument("--shape", nargs="*", default=[], metavar="NAME=N", help=text)
    names = [entrant.name for entrant in _ENTRANTS]
    parser.add_argument("--entrants", nargs="+", choices=names, default=names)


def _run(options: Any) -> None:
    """Models that are in the file already are left out."""
    missing = [name for name in options.models if name in _OF_KERAS_HUB]
    if missing and find_spec("keras_hub") is None:
        raise SystemExit(
            f"keras-hub must be installed for {', '.join(missing)}. Install it: "
            "pip install -e '.[zoo]', or choose others with --models."
        )
    names = ("steps", "seed", "shape")
    settings = settings_of(options, *names) | {"idle": _IDLE_STEPS}
    book = Book(options, settings, _FOLDER)
    for model in options.models:
        _compare(model, options, book)


def _compare(model: str, options: Any, book: Book) -> None:
    """Learn what plain Keras takes, here and on the card, then let all compete."""
    few = Namespace(**vars(options) | {"steps": _FEW_STEPS})
    plain = _row("training", model, few, book)
    step = quiet_median(plain, skipped=1)
    far = ("--predict", f"--memory={ENOUGH}", f"--hardware={_CARD}")
    there = _row("prediction", model, few, book, *far)["predicted_seconds"]
    rate = link_rate(predicted=there, measured=step)
    memory = plain["peak_bytes"] // 2 // MIB * MIB
    book.say(f"{model}: {format_bytes(memory)}, a link of {rate / 1e6:.0f} MB/s")
    known = {"link_rate": rate, "memory_bytes": memory}
    key = {"kind": "turns", "model": model}
    book.once(key, lambda: known | {"trainings": _turns(model, options, book, known)})


def _row(kind: str, model: str, options: Any, book: Book, *more: str) -> Row:
    """Of plain Keras with enough memory."""
    row = book.row(
        {"kind": kind, "model": model},
        name=f"{kind} of plain Keras, {model}",
        memory=ENOUGH,
        flags=_flags(model, "plain", options, *more),
    )
    if row["error"]:
        raise SystemExit(f"{model} does not train plainly: {row['error']}")
    return row


def _turns(
    model: str, options: Any, book: Book, known: Mapping[str, Any]
) -> list[dict[str, Any]]:
    rate = known["link_rate"]
    long = Namespace(**vars(options) | {"steps": _IDLE_STEPS + options.steps})
    place = Place(
        name=f"{model}, over the link",
        memory=known["memory_bytes"],
        link=LinkRates(h2d=rate, d2h=rate, latency=LATENCY),
        cores=1,
        idle=_IDLE_STEPS,
        flags=lambda way, *more: _flags(model, way, long, *more),
        folder=_FOLDER,
        console=book.console,
    )
    entrants = [one for one in _ENTRANTS if one.name in options.entrants]
    return compete(entrants, place, steps=options.steps)


def _flags(model: str, way: str, options: Any, *more: str) -> tuple[str, ...]:
    core = f"--core={max(os.sched_getaffinity(0))}"
    words = (f"--model={model}", f"--way={way}", f"--steps={options.steps}", core)
    shape = ("--shape", *options.shape) if options.shape else ()
    return (*words, f"--seed={options.seed}", "--deterministic", *more, *shape)


ANSWER = Answer(
    name="moved_or_recomputed",
    title="Moved or recomputed over a slow link",
    emulated=LINK,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    plot=plot,
    goals=goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
