"""On cards that are not here: what does a step cost at its true size, as promised?

TensorFlow's own GPU runtime runs on a dry card (`lms.emulation`): allocator, scheduling
and copies are real, a kernel takes what the card's data sheet says, and no number is
computed. Cards are a V100 of 16 GB and an A100 of 80 GB, each over PCIe and NVLink:

    U-Net       the case study's: 16 filters, 5 levels, batch 1, float32; 144^3 and
                192^3 by plain Keras, and 192^3 by the callback in 5.97 GiB
    ResNet50    of keras.applications, 64 images of 224 x 224: in half of plain's peak
    GPT-2       small, of keras-hub, 2 sentences of 1,024 words: in half likewise

Plain Keras has all of the card. The U-Net's plan trains once more with copies as they
were first made: by an op on the host, to which the runtime copies by itself.

A step is the median of those after the first two. What is promised is the report's:
the predicted step over the predicted step with room for all. Copies are the runtime's
own, read off a trace of the last step; hidden is what runs beside kernels.

Known weaknesses: data sheets are the best that a card can do, for both alike. All that
the card does is slowed down, so that this machine's two cores, which other work shares,
look as fast beside it as a server's: what the host itself costs is seen too small. Each
training ran once, and copies do not slow down kernels that want the same memory.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.ledger import Ledger
from experiments.question import Answer, settings_of
from experiments.runner import why_it_failed
from experiments.virtual_cards_finding import finding, goals
from lms.emulation import emulate
from lms.machine.link import LINKS
from lms.storage.cache import OFF, VARIABLE
from profiling.record import read_json

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "virtual_cards"
_LONGEST = 900  # seconds of a trial
_EMULATED = "The cards: TensorFlow's GPU runtime on a dry card, which computes nothing."
_PLACES = (
    ("v100-pcie", "pcie3"),
    ("v100-pcie", "nvlink2"),
    ("a100-80-pcie4", "pcie4"),
    ("a100-80-pcie4", "nvlink2"),
)


@dataclass(frozen=True, slots=True)
class _Training:
    """What trains: the model, its size or batch, its budget, and the slow motion."""

    model: str
    number: int
    budget: str | None
    slow: dict[str, int]


# In slow motion a step takes seconds of this machine.
_TRAININGS = (
    _Training("unet", 192, "5.97GiB", {"v100": 10, "a100": 20}),
    _Training("resnet50", 64, None, {"v100": 10, "a100": 30}),
    _Training("gpt2", 2, None, {"v100": 15, "a100": 40}),
)
_SMALL = _Training("unet", 144, None, {"v100": 15, "a100": 30})


def _add_settings(parser: Any) -> None:
    parser.add_argument("--steps", type=int, default=5, help="of each training")


def _run(options: Any) -> None:
    """Finished trials are kept when a run goes on."""
    ledger = Ledger(options.results, settings_of(options, "steps"), anew=options.anew)
    for place in _PLACES:
        for training in _TRAININGS:
            _train_all(ledger, place, training, options.steps)
        _Trial(ledger, place, _SMALL, options.steps).row("plain")


def _train_all(ledger: Ledger, place: Any, training: _Training, steps: int) -> None:
    """Plainly, by the callback, and by its plan with the old copies."""
    trial = _Trial(ledger, place, training, steps)
    plain = trial.row("plain")
    if plain["error"]:
        return
    budget = training.budget or str(plain["peak_bytes"] // 2)
    plan = _FOLDER / f"{trial.name}.plan"
    words = (f"--budget={budget}", f"--keep-plan={plan}")
    planned = trial.row("callback", *words)
    if training.model == "unet" and not planned["error"]:
        trial.row("host copies", words[0], f"--plan={plan}", "--host-copies")


@dataclass(frozen=True, slots=True)
class _Trial:
    """Trainings of one model in one place."""

    ledger: Ledger
    place: tuple[str, str]
    training: _Training
    steps: int

    @property
    def name(self) -> str:
        """Of its files."""
        return "-".join((*self.place, self.training.model, str(self.training.number)))

    def row(self, way: str, *words: str) -> dict[str, Any]:
        """The row of a way to train; if it is not there, it is measured."""
        card, link = self.place
        key = {"card": card, "link": link, "way": way}
        key |= {"model": self.training.model, "number": self.training.number}
        row = self.ledger.once(key, lambda: self._trained(way, words))
        print(f"{self.name}, {way}: {row['error'] or row['step_seconds']}", flush=True)
        return row

    def _trained(self, way: str, words: tuple[str, ...]) -> dict[str, Any]:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        at = _FOLDER / f"{self.name}-{way.replace(' ', '-')}"
        output, log = at.with_suffix(".json"), at.with_suffix(".log")
        slow = self.training.slow[self.place[0].partition("-")[0]]
        flags = (*self._flags(slow), f"--trace={at.with_suffix('.trace')}", *words)
        command = (sys.executable, "-m", "experiments.virtual_cards_trial", *flags)
        with log.open("w") as sink:
            code = subprocess.run(
                (*command, f"--output={output}"),
                env=self._environment(slow),
                check=False,
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=_LONGEST,
            ).returncode
        error = why_it_failed(log.read_text(errors="replace"), code)
        row = {"slow_motion": slow, "error": error}
        return row | (read_json(output) if error is None else {})

    def _flags(self, slow: float) -> Iterator[str]:
        yield f"--model={self.training.model}"
        yield f"--number={self.training.number}"
        yield f"--steps={self.steps}"
        yield f"--slow-motion={slow}"

    def _environment(self, slow: float) -> dict[str, str]:
        """Nothing that was measured on another card or link is taken for this one's."""
        card, link = self.place
        variables = emulate.environment(
            card=card, dry=True, link=LINKS[link], slow_motion=slow
        )
        return {**variables, VARIABLE: OFF, "TF_CPP_MIN_LOG_LEVEL": "2"}


ANSWER = Answer(
    name="virtual_cards",
    title="What a step costs on cards that are not here",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    goals=goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
