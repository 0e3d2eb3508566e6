"""Does any Keras model train in any budget, with plain Keras's bits, or is it refused?

Models that nobody of this project wrote (`experiments.zoo_names`): networks of
`keras.applications`, small configurations of keras-hub with random weights, and models
as a new user writes them. Each is trained for two epochs of three batches, in processes
and devices of their own; the model is built before anything of `lms` is imported, as a
user may. The device is a hard limit of the allocator:

    plain       twice in a device with plenty: its peak, and whether it repeats its bits
    shares      0.8, 0.6 and 0.45 of that peak, three times each
    asked       where none of these was refused: asked with a budget of 1 MiB for the
                least, in the smallest of them
    least       a device whose budget is 1.05 times the least that was named, thrice

Each training ends as one of `experiments.zoo_judging.Outcome`. Goal: none is a defect,
in any of its repeats.

Known weaknesses: two trials at once share the cores, so seconds say nothing. Models are
small, so a few MiB are a larger part than they would be.
"""

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event
from typing import Any

from rich.console import Console

from experiments.ledger import Ledger
from experiments.question import DEVICE, Answer
from experiments.runner import Trial, run_trial
from experiments.zoo_drawing import finding, goals, plot
from experiments.zoo_judging import SPARE, judge, least_named
from experiments.zoo_names import NAMES, OF_KERAS_HUB, SMALL_NAMES, kind_of
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "device_for", "main"]

_FOLDER = Path("build") / "experiments" / "zoo"
_ENOUGH = 8192 * MIB
_SHARES = (0.8, 0.6, 0.45)
_PLAIN_RUNS = 2
_MARGIN = 32  # one part of so many that is kept
_ASKED = "1MiB"  # nothing trains in it
_DIGITS = 4  # of each variable's digest that are kept
_TOLD = 4  # variables that are named where they differ


def _add_settings(parser: Any) -> None:
    known = [*NAMES, *SMALL_NAMES]
    parser.add_argument("--models", nargs="+", choices=known, default=NAMES)
    parser.add_argument("--shares", nargs="+", type=float, default=_SHARES)
    parser.add_argument("--repeats", type=int, default=3, help="of each training")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once")
    text = "seconds after which a trial is ended, and hung"
    parser.add_argument("--longest", type=float, default=1200, help=text)
    text = "do not ask models that were never refused for their least budget"
    parser.add_argument("--no-ask", action="store_true", help=text)
    text = "where trials leave results and logs"
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=text)


def _run(options: Any) -> None:
    """Train what is missing; rows of an earlier run with the same settings stay."""
    hub = _keras_hub()
    missing = [name for name in options.models if name in OF_KERAS_HUB and not hub]
    if missing:
        raise SystemExit(
            f"keras-hub must be installed for {', '.join(missing)}. Install it: "
            "pip install -e '.[zoo]', or choose others with --models."
        )
    settings = {"spare": SPARE, "plain_runs": _PLAIN_RUNS, "keras_hub": hub}
    ledger = Ledger(options.results, settings, anew=options.anew)
    keeper = _Keeper(ledger, options)
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(keeper.keep, options.models))
        except KeyboardInterrupt:
            keeper.stop()
            raise


def _keras_hub() -> str | None:
    try:
        return version("keras-hub")
    except PackageNotFoundError:
        return None


class _Keeper:
    """Trains each model in all that it is to be trained in; rows are written at once.

    Args:
        ledger: Of all models.
        options: Of the command line.
    """

    def __init__(self, ledger: Ledger, options: Any) -> None:
        self._ledger = ledger
        self._options = options
        self._stopped = Event()
        # No spinner: that of another trial may be turning.
        self._console = Console(force_terminal=False, soft_wrap=True, highlight=False)

    def stop(self) -> None:
        """Write no more rows: trials that are underway end with the whole run."""
        self._stopped.set()

    def keep(self, model: str) -> None:
        """Train one model in each of its devices."""
        plain = [
            self._row(
                {"model": model, "kind": "plain", "share": 1.0, "repeat": i},
                memory=_ENOUGH,
            )
            for i in _counted(_PLAIN_RUNS)
        ]
        if any(row["error"] for row in plain):
            self._console.print(f"{model}: plain Keras does not train it")
            return
        rows = [*plain, *self._shares(model, plain)]
        least = least_named(rows)
        if least is None and not self._options.no_ask:
            rows.append(self._asked(model, plain))
            least = least_named(rows)
        if least is not None:
            rows += self._least(model, least, plain[0])
        self._say(model, rows)

    def _shares(
        self, model: str, plain: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        keys = (
            {"model": model, "kind": "training", "share": share, "repeat": i}
            for share in self._options.shares
            for i in _counted(self._options.repeats)
        )
        return [
            self._row(key, memory=_part(plain, key["share"]), plain=plain[0])
            for key in keys
        ]

    def _asked(self, model: str, plain: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        share = min(self._options.shares)
        key = {"model": model, "kind": "asked", "share": share, "repeat": 1}
        flags = (f"--budget={_ASKED}",)
        return self._row(key, memory=_part(plain, share), plain=plain[0], flags=flags)

    def _least(
        self, model: str, least: int, plain: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        memory = int(SPARE * least) // MIB * MIB
        named = {"model": model, "kind": "least", "least_bytes": least}
        return [
            self._row(named | {"repeat": i}, memory=memory, plain=plain)
            for i in _counted(self._options.repeats)
        ]

    def _row(
        self,
        key: Mapping[str, Any],
        *,
        memory: int,
        plain: Mapping[str, Any] | None = None,
        flags: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """The row of a trial; if it is not there, the trial is made."""

        def measure() -> Mapping[str, Any]:
            trial = run_trial(
                _name(key, memory),
                memory=memory,
                command=("experiments.zoo_trial",),
                flags=(
                    f"--model={key['model']}",
                    f"--way={'plain' if key['kind'] == 'plain' else 'lms'}",
                    *flags,
                ),
                folder=self._options.folder,
                console=self._console,
                longest=self._options.longest,
            )
            if self._stopped.is_set():
                raise SystemExit("stopped")
            told: dict[str, Any] = {"of": kind_of(key["model"])} | _told(trial, plain)
            if flags and told.get("refused") and plain is not None:
                told["refused"] = _of_the_device(told["refused"], plain)
            return told

        return self._ledger.once(key, measure)

    def _say(self, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for verdict in judge(rows):
            row = verdict.row
            where = f"{model}, {row['kind']} {row.get('share') or ''}".strip()
            memory = format_bytes(row["memory_bytes"])
            text = f"{where}, {memory}: {verdict.outcome.value} {verdict.reason}"
            self._console.print(text.strip(), markup=False)


def device_for(budget: int, batch_bytes: int) -> int:
    """The smallest device of whole MiB whose own budget is at least that many bytes.

    Without a budget of the user's the callback keeps a margin, 1/32 of the device and
    at least 1 MiB, and room for a batch that waits.

    Example:
        >>> device_for(62 * MIB, 2 * MIB) // MIB
        67
    """
    sizes = itertools.count(budget // MIB)
    memory = (size * MIB for size in sizes)
    return next(
        size
        for size in memory
        if size - max(MIB, size // _MARGIN) - batch_bytes >= budget
    )


def _of_the_device(
    refused: Mapping[str, Any], plain: Mapping[str, Any]
) -> dict[str, Any]:
    """The refusal of a budget in the words of one without: the device's memory."""
    least = device_for(refused["least_bytes"], plain["batch_bytes"])
    return {**refused, "least_bytes": least}


def _counted(count: int) -> range:
    return range(1, count + 1)


def _part(plain: Sequence[Mapping[str, Any]], share: float) -> int:
    """Compute a device: a share of plain Keras's peak, in whole MiB."""
    return int(share * max(row["peak_bytes"] for row in plain)) // MIB * MIB


def _name(key: Mapping[str, Any], memory: int) -> str:
    return f"{key['model']}, {key['kind']}, {memory // MIB} MiB, {key['repeat']}"


def _told(trial: Trial, plain: Mapping[str, Any] | None) -> dict[str, Any]:
    """A trial as a row; plain Keras's keeps a little of each variable's digest."""
    row = {"memory_bytes": trial.memory, "error": trial.error, "seconds": trial.seconds}
    result = dict(trial.result or {})
    variables = result.pop("variables", [])
    if plain is None:
        digests = [digest[:_DIGITS] for _, digest in variables]
        return row | result | {"digests": "".join(digests)}
    return row | result | {"differing": _differing(variables, plain["digests"])}


def _differing(variables: Sequence[Sequence[str]], plain: str) -> dict[str, Any] | None:
    """Which variables are not as plain Keras's; None if all are, or are not known."""
    theirs = [plain[i : i + _DIGITS] for i in range(0, len(plain), _DIGITS)]
    paths = [
        path
        for (path, own), other in zip(variables, theirs, strict=False)
        if own[:_DIGITS] != other
    ]
    if not paths:
        return None
    return {"count": len(paths), "of": len(theirs), "first": paths[:_TOLD]}


ANSWER = Answer(
    name="zoo",
    title="Models that others wrote, in less memory",
    emulated=DEVICE,
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
