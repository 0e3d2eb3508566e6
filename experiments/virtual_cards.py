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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.ledger import Ledger, Row
from experiments.question import Answer, settings_of
from experiments.runner import why_it_failed
from experiments.virtual_cards_finding import finding, goals
from lms.emulation import emulate
from lms.machine.hardware import LINKS
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


# Size or batch, budget (half of plain's peak if None), and slow motion, in which a step
# takes seconds of this machine: on a V100, on an A100.
_MODELS = (
    ("unet", 192, "5.97GiB", (10, 20)),
    ("resnet50", 64, None, (10, 30)),
    ("gpt2", 2, None, (15, 40)),
)


def _add_settings(parser: Any) -> None:
    parser.add_argument("--steps", type=int, default=5, help="of each training")


def _run(options: Any) -> None:
    """Finished trials are kept when a run goes on."""
    ledger = Ledger(options.results, settings_of(options, "steps"), anew=options.anew)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for card, link in _PLACES:
        on_a100 = card.startswith("a100")
        for model, number, budget, slow in _MODELS:
            key = {"card": card, "link": link, "model": model, "number": number}
            key["slow_motion"] = slow[on_a100]
            _train_all(ledger, key, budget, options.steps)
            if model == "unet":
                _train(ledger, {**key, "number": 144, "way": "plain"}, options.steps)


def _train_all(
    ledger: Ledger, key: dict[str, Any], budget: str | None, steps: int
) -> None:
    """Plainly, by the callback, and by its plan with the old copies."""
    plain = _train(ledger, {**key, "way": "plain"}, steps)
    if plain["error"]:
        return
    words = (f"--budget={budget or plain['peak_bytes'] // 2}",)
    plan = f"{_FOLDER / '-'.join(map(str, key.values()))}.plan"
    planned = _train(
        ledger, {**key, "way": "callback"}, steps, *words, f"--keep-plan={plan}"
    )
    if key["model"] == "unet" and not planned["error"]:
        words = (*words, f"--plan={plan}", "--host-copies")
        _train(ledger, {**key, "way": "host copies"}, steps, *words)


def _train(ledger: Ledger, key: dict[str, Any], steps: int, *words: str) -> Row:
    """The row of one training; if it is not there, it is measured."""

    def measure() -> dict[str, Any]:
        flags = [f"--{name}={key[name]}" for name in ("model", "number")]
        flags += [f"--slow-motion={key['slow_motion']}", f"--steps={steps}"]
        return _measured(key, [*flags, *words])

    row = ledger.once(key, measure)
    print(*key.values(), row["error"] or row["step_seconds"], flush=True)
    return row


def _measured(key: dict[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """Nothing that was measured on another card or link is taken for this one's."""
    at = _FOLDER / "-".join(map(str, key.values())).replace(" ", "-")
    output, trace = (f"{at}.{kind}" for kind in ("json", "trace"))
    command = [sys.executable, "-m", "experiments.virtual_cards_trial", *flags]
    card = {"card": key["card"], "dry": True, "slow_motion": key["slow_motion"]}
    variables = emulate.environment(**card, link=LINKS[key["link"]])
    with Path(f"{at}.log").open("w+") as log:
        code = subprocess.run(
            [*command, f"--output={output}", f"--trace={trace}"],
            env={**variables, VARIABLE: OFF, "TF_CPP_MIN_LOG_LEVEL": "2"},
            check=False,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST,
        ).returncode
        log.seek(0)
        error = why_it_failed(log.read(), code)
    return {"error": error, **(read_json(Path(output)) if error is None else {})}


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
