"""Memory that ops take of a card: expected by the library, and logged by TensorFlow.

    python -m experiments run allocations          the zoo: some minutes a model
    python -m experiments show allocations

Each model trains in 0.7 of plain Keras's peak on a dry card, on which the host code of
TensorFlow's own kernels for GPUs asks the allocator for memory. The allocator's log of
one step is compared with the plan, op by op (`profiling.allocations`). With `--card
real` this machine's card is measured, cuDNN's workspace included.

A difference of 64 KiB or more means that the library expects wrong bytes of an op. The
answer names each such op.
"""

from collections import defaultdict
from typing import Any

from experiments.bits import parts
from experiments.names import NAMES, TITLES
from experiments.question import Answer, Verdict
from experiments.runner import Book, Trial
from experiments.stats import Row, Rows, trained
from experiments.subjects import in_mib
from lms.units import GIB, format_bytes

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts"]

TITLE = "What ops take of the card's memory"
SETTINGS = {"models": (*NAMES, "unet"), "share": 0.7}
KNOWN = {"models": tuple(TITLES)}
_CARD: dict[str, Any] = {"card": "v100-pcie", "link": "pcie3", "dry": True}
_ENOUGH = 8 * GIB  # memory of a card on which plain Keras trains


def measure(book: Book, model: str, options: Any) -> None:
    """Train one model by plain Keras, then planned, with a recorded step."""
    known: dict[str, Any] = {**_CARD, "feed": "arrays", "steps": 4, "model": model}
    base = book.row({"model": model, "way": "plain"}, Trial(memory=_ENOUGH, **known))
    if not trained(base):
        return
    memory = in_mib(options.share * base["peak_bytes"])
    own = Trial(way="callback", memory=memory, traced=True, **known)
    key = {"model": model, "way": "callback", "share": options.share}
    book.row(key, own)


def answer(rows: Rows) -> Answer:
    """Report the ops that took other memory than expected, by type and by model."""
    planned = [row for row in rows if row["way"] == "callback"]
    compared = [row for row in planned if row.get("allocations")]
    unlike = [(row, one) for row in compared for one in row["allocations"]["unlike"]]
    ops = sum(row["allocations"]["ops"] for row in compared)
    text = f"{ops - len(unlike)} of {ops:,} ops of {len(compared)} planned steps took "
    text += "the expected memory, within 64 KiB"
    verdicts: list[Verdict] = [(not unlike, text)]
    kinds: dict[str, list[Any]] = defaultdict(list)
    for row, one in unlike:
        kinds[one[0] or one[1]].append((row, one))
    columns = ["op", "models", "ops", "expected", "logged"]
    body = [_line(kind, found) for kind, found in kinds.items()]
    names = ["model", "ops", "unlike", "expected", "logged", "peak over its promise"]
    return Answer(
        finding=f"{text}. {len(planned) - len(compared)} of {len(planned)} models had "
        "no plan to compare.",
        table=("Ops that took other memory", columns, body),
        more=[("Each model", names, [_model(row) for row in planned])],
        verdicts=verdicts,
    )


def _line(kind: str, found: list[Any]) -> list[str]:
    models = {row["model"] for row, _ in found}
    sums = [sum(sum(one[place]) for _, one in found) for place in (2, 3)]
    return [kind, str(len(models)), str(len(found)), *map(format_bytes, sums)]


def _model(row: Row) -> list[str]:
    title, found, report = TITLES[row["model"]], row.get("allocations"), row["report"]
    if not found or not report:
        return [title, *([""] * 4), row["error"] or "no plan"]
    sums = [format_bytes(found[f"{name}_bytes"]) for name in ("expected", "logged")]
    ratio = row["peak_bytes"] / report["predicted_peak_bytes"]
    return [title, str(found["ops"]), str(len(found["unlike"])), *sums, f"{ratio:.3f}"]
