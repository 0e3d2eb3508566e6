r"""A quarter of an hour with a real card: trials of four questions beside each other.

    python -m experiments day --card real --minutes 12   call it again: it goes on
    python -m experiments day --preset h100-sxm          before: predictions

A rehearsal with tiny models:

    python -m lms emulate --memory 6GiB --card t4 --slow-motion 20 -- \
      python -m experiments day --card real --small --slots 2

Nine tenths of a trial are Python's work on one core, so trials share the card, as
copies of one process that has imported TensorFlow. A timed trial has the card alone
(`experiments.turns`). The most valuable trials come first:

    capacity   U-Net: plain Keras at 144^3; each way at 192^3, in 1.05 times its peak
    gpu        the machine; bits, peaks and copies of planned steps; launches, batches
    cost       U-Net, GPT-2, ResNet50: plain Keras without and with XLA, 0.45, 0.3
    gpu        traced steps: what the allocator did, kernels by op (allocs.jsonl)
    bits       the zoo at 0.8, 0.6, 0.45 and 0.3 with op determinism
    cost       twice again

On a dry card `capacity` and `cost` run alone, as predictions.
"""

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import bits, gpu, real_cards, turns
from experiments.beside import Step, run_all
from experiments.capacity import SPARE
from experiments.runner import FRONT, Book, Trial
from experiments.stats import Row
from experiments.subjects import SUBJECTS, attempts, in_mib
from lms.machine.hardware import PRESETS
from lms.machine.inventory import read_driver
from lms.units import GIB

__all__ = ["add_options", "run"]

_CONTEXT = 1.2  # GiB of a process beside TensorFlow's allocator
_SHARED = 0.91  # of the card for trials: the rest is the driver's, and fragmentation
_LONGEST = 270.0  # seconds of a trial on a real card
_LARGE = {"unet": 22, "gpt2": 11, "resnet50": 8}  # GiB for plain Keras
_WAYS: Mapping[str, Sequence[tuple[str, float | None]]] = {
    "unet": (("callback", 0.45), ("xla", None), ("callback", 0.3), ("callback", 0.7)),
    "gpt2": (("callback", 0.45), ("xla", None), ("callback", 0.3)),
    "resnet50": (("callback", 0.45), ("xla", None), ("callback", 0.3)),
}
_ZOO: Mapping[str, Sequence[float]] = {
    **dict.fromkeys(("unet", "seq2seq", "float16_cnn"), (0.8, 0.6, 0.45)),
    **dict.fromkeys(("bert", "t5", "whisper", "swin", "gan", "autoencoder"), (0.45,)),
    **dict.fromkeys(("float16_vit", "convlstm", "segformer", "bfloat16_cnn"), (0.6,)),
    **dict.fromkeys(("resnet50", "gpt2", "mobilenetv3small", "vgg16"), (0.3,)),
    **dict.fromkeys(("densenet121", "deeplab", "retinanet"), (0.6,)),
}
_TRACED = ("gru",)


def add_options(parser: argparse.ArgumentParser, run_options: Any) -> None:
    """Add the options of the command; `run_options` adds options of all questions."""
    run_options(parser)
    text = "folder of the rows; by default the card's in experiments/results"
    parser.add_argument("--results", type=Path, help=text)
    text = "dry card that predicts a day without a real card"
    parser.add_argument("--preset", choices=PRESETS, default="h100-sxm", help=text)
    parser.add_argument("--small", action="store_true", help="tiny models: a rehearsal")
    text = "trials at once; by default two less than there are cores"
    parser.add_argument("--slots", type=int, help=text)
    parser.add_argument("--only", nargs="*", default=[""], help="first words of steps")


def run(options: Any, folder: Path) -> None:
    """Run all trials that have no row yet.

    Raises:
        OutOfTimeError: If there was no time for all.
        SystemExit: If there is no card.
    """
    is_real, rows = options.card == "real", dict[str, Row]()
    ends = time.monotonic() + 60 * options.minutes
    known: Any = {"card": options.card, "deadline": ends, "copies": is_real}
    known |= {"folder": options.folder}
    files = {name: folder / f"{name}.jsonl" for name in real_cards.QUESTIONS}
    books = {name: Book(path=path, **known) for name, path in files.items()}
    day = _Day(books=books, rows=rows, options=options)
    steps = [s for s in day.steps() if s.name.startswith(tuple(options.only))]
    if not is_real:
        run_all(steps, rows, slots=options.slots or 1, room=float("inf"))
        return
    cards = read_driver().gpus
    room = _SHARED * ((cards[0].memory if cards else None) or 16 * GIB) / GIB
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # of all copies
    if front := os.environ.pop("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", None):
        os.environ[FRONT] = front
    with suppress(OSError):  # the driver stays awake between trials
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    with tempfile.TemporaryDirectory() as locks:
        os.environ[turns.VARIABLE] = locks
        slots = options.slots or max(2, (os.cpu_count() or 2) - 2)
        run_all(steps, rows, slots=slots, room=room)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Day:
    """Books and rows so far, and all steps of the day."""

    books: Mapping[str, Book]
    rows: dict[str, Row]
    options: Any

    def steps(self) -> Iterator[Step]:
        """Yield all steps, the most valuable first."""
        is_real, is_small = self.options.card == "real", self.options.small
        yield from self._headline()
        yield from self._mechanisms() if is_real else ()
        yield from self._costs(1)
        if is_real:
            yield from self._traced()
            yield from self._bits()
            for repeat in () if is_small else (2, 3):
                yield from self._costs(repeat)

    def _step(  # noqa: PLR0913 - a trial
        self,
        name: str,
        key: dict[str, Any],
        trial: Callable[[], Trial],
        gib: float,
        *,
        book: str = "gpu",
        base: str = "",
        share: float | None = None,
        budget: bool = False,
    ) -> Step:
        """Make a step of a trial in `gib`, or in a share of the peak of step `base`.

        With `budget` the share limits the callback, not the card.
        """

        def act() -> Row:
            made = trial()
            made = replace(made, memory=made.memory or int(gib * GIB))
            if share is not None:
                part = share * self.rows[base]["peak_bytes"]
                known: Any = (
                    {"budget": int(part)} if budget else {"memory": in_mib(part)}
                )
                made = replace(made, **known)
            return attempts(self.books[book], key, self._in_time(made))

        needs = (base,) if base else ()
        return Step(name=name, act=act, needs=needs, gib=gib + _CONTEXT)

    def _in_time(self, trial: Trial) -> Trial:
        is_quick = self.options.card == "real" and not self.options.small
        return replace(trial, longest=_LONGEST) if is_quick else trial

    def _gib(self, real: float, small: float = 1) -> float:
        return small if self.options.small else real

    def _training(self, model: str, way: str, steps: int, **more: Any) -> Trial:
        """Make a trial of `capacity` or `cost`."""
        known = {"small": self.options.small, "steps": steps, **more}
        if self.options.card != "real":
            known |= {"preset": self.options.preset, "steps": 6}
        return SUBJECTS[model].trial(way, **known)

    def _ways(self, ways: Iterable[Any]) -> list[Any]:
        """Leave out ways that a dry card lacks, such as XLA."""
        is_real = self.options.card == "real"
        return [one for one in ways if is_real or "xla" not in one]

    def _headline(self) -> Iterator[Step]:
        start, large = (16, 32) if self.options.small else (144, 192)

        def step(name: str, way: str, size: int, gib: float, **more: Any) -> Step:
            key = {"model": "unet", "way": way, "size": size}
            key |= {"kind": "training", "attempt": 1} if more else {"kind": "base"}
            trial = partial(self._training, "unet", way, 12, shape={"size": size})
            return self._step(name, key, trial, gib, book="capacity", **more)

        # Plain Keras takes less than four fifths of the first step's memory.
        yield step("base", "plain", start, self._gib(10))
        for way in self._ways(("callback", "plain", "rule", "xla")):
            known: Any = {"base": "base", "share": SPARE}
            yield step(f"headline {way}", way, large, self._gib(7), **known)

    def _mechanisms(self) -> Iterator[Step]:
        net = {"size": 16, "filters": 8, "depth": 2} if self.options.small else {}
        options = argparse.Namespace(**gpu.SETTINGS | net)
        large, little = self._gib(gpu.ROOM / GIB, 0.5), self._gib(2, 0.5)

        def trial(name: str) -> Trial:
            found = self.rows.get("machine", {}).get("hardware", {})
            trials = gpu.catalogue(options, found.get("flops", 0))
            return trials.get(name, Trial(probe="machine"))

        sizes = {"machine": large, gpu.PLAIN: large}
        sizes |= {"launches": little, "batches": little, "transports": large}
        sizes |= dict.fromkeys(gpu.TRAININGS, large)
        for name, gib in {**sizes, "no room in a convolution": 0.5}.items():
            share = gpu.TRAININGS.get(name)
            base = gpu.PLAIN if share else "machine" if name == "transports" else ""
            known: Any = {"share": share, "base": base, "budget": bool(share)}
            yield self._step(name, {"name": name}, partial(trial, name), gib, **known)

    def _costs(self, repeat: int) -> Iterator[Step]:
        for model, ways in _WAYS.items():
            base = f"cost {model} plain {repeat}"
            for way, share in self._ways((("plain", None), *ways)):
                words = ("cost", model, way, *[share] * bool(share), repeat)
                name = " ".join(map(str, words))
                key = {"model": model, "way": way, "share": share, "repeat": repeat}
                known: Any = {"base": base if share else "", "share": share}
                gib = self._gib(_LARGE[model]) * (share or 1)
                trial = partial(self._training, model, way, 16)
                yield self._step(name, key, trial, gib, book="cost", **known)

    def _traced(self) -> Iterator[Step]:
        for model in (*_LARGE, *(("small_cnn",) if self.options.small else _TRACED)):
            own, plain = SUBJECTS.get(model), f"log {model} plain"
            shape = (own.small if self.options.small else own.shape) if own else {}
            known: Any = {"model": model, "shape": dict(shape), "traced": True}
            trial = Trial(steps=5, deterministic=False, **known)
            gib = self._gib(_LARGE.get(model, 4))
            yield self._step(plain, {"name": plain}, lambda t=trial: t, gib)
            if own:
                trial, name = replace(trial, way="callback"), f"log {model} 0.45"
                known = {"base": plain, "share": 0.45, "budget": True}
                yield self._step(name, {"name": name}, lambda t=trial: t, gib, **known)

    def _bits(self) -> Iterator[Step]:
        models = {"small_cnn": (0.6,), "gru": (0.45,)} if self.options.small else _ZOO
        room = self._gib(4)

        def step(name: str, model: str, share: float, repeat: int, *needs: str) -> Step:
            kind, gib = ("training", 0.5) if needs else ("plain", room)
            key = {"model": model, "kind": kind, "share": share, "repeat": repeat}

            def act() -> Row:
                plain = [self.rows[name] for name in needs]
                peak = max((row["peak_bytes"] for row in plain), default=room * GIB)
                longest = self._in_time(Trial()).longest
                known: Any = {"plain": plain, "longest": longest}
                memory = in_mib(share * peak)
                return bits.row_of(self.books["bits"], key, memory, **known)

            return Step(name=name, act=act, needs=needs, gib=gib + _CONTEXT)

        plain = {model: [f"bits {model} plain {i}" for i in (1, 2)] for model in models}
        for model, names in plain.items():
            yield from (step(name, model, 1.0, i) for i, name in enumerate(names, 1))
        for model, shares in models.items():
            for share in shares:
                yield step(f"bits {model} {share}", model, share, 1, *plain[model])
