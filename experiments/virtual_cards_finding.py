"""The finding of `virtual_cards`: sentences, two tables, goals."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.ledger import Head, Row, Rows
from experiments.question import Finding, shortened
from lms.units import format_bytes

__all__ = ["WAYS", "finding", "goals"]

_CALLBACK, _OLD, _PLAIN = "callback", "host copies", "plain"
_MOST, _NEAR = 1.15, 0.05  # times plain, and of it
_SKIPPED = 2  # first steps
_CARDS = {"v100-pcie": "V100 16 GB", "a100-80-pcie4": "A100 80 GB"}
_LINKS = {"pcie3": "PCIe 3.0", "pcie4": "PCIe 4.0", "nvlink2": "NVLink 2.0"}
_MODELS = {
    "unet": "U-Net, {0}^3",
    "resnet50": "ResNet50, {0} images",
    "gpt2": "GPT-2 small, {0} x 1,024 words",
}
WAYS = {_CALLBACK: "the callback", _OLD: "its plan, host copies", _PLAIN: "plain Keras"}


@dataclass(frozen=True, slots=True)
class _Planned:
    """A training by a plan, beside plain Keras's on the same card."""

    row: Row
    plain: Row

    @property
    def step(self) -> float:
        return _step(self.row) / _step(self.plain)

    @property
    def promise(self) -> float:
        seconds = self.row["promised_seconds"]
        return seconds / self.row["promised_plain_seconds"] if seconds else 1.0

    @property
    def copies(self) -> str:
        """Out and in, planned and run."""
        row, of = self.row, ("planned", "copies")
        return " / ".join(f"{row[f'{i}_out']} + {row[f'{i}_in']}" for i in of)

    @property
    def bytes_out(self) -> str:
        """Planned and counted."""
        names = ("planned_out_bytes", "copied_out_bytes")
        return " / ".join(format_bytes(self.row[name]) for name in names)

    @property
    def is_copied_as_planned(self) -> bool:
        """True if no more is copied than planned, but for plain Keras's own copies."""
        names = [("planned_{}", "copies_{}"), ("planned_{}_bytes", "copied_{}_bytes")]
        more = [
            (self.row[ran] - self.row[planned], self.plain[ran])
            for way in ("out", "in")
            for planned, ran in ([one.format(way) for one in pair] for pair in names)
        ]
        return all(0 <= beyond <= own for beyond, own in more)

    @property
    def slowness(self) -> float:
        """Plain's step of ops that were timed one by one, over the step itself."""
        seconds = self.row["promised_plain_seconds"]
        return seconds / _step(self.plain) if seconds else 1.0

    @property
    def hidden(self) -> str:
        """Of the time that swap-ins take, the share beside kernels."""
        seconds = self.row["copying_in_seconds"]
        return f"{self.row['hidden_in_seconds'] / seconds:.0%}" if seconds else "-"


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the tables."""
    del head
    own, old = _planned(rows, _CALLBACK), _planned(rows, _OLD)
    columns = ["model", "card", "link", "way", "device", "promised ratio"]
    columns += ["over plain Keras", "copies", "copied", "swap-ins hidden", "run twice"]
    columns += ["peak promised", "peak", "planning"]
    table = ("Steps by a plan", columns, [_cells(each) for each in (*own, *old)])
    plain = [row for row in rows if row["way"] == _PLAIN]
    columns = ["model", "card", "link", "plain step", "kernels", "peak"]
    columns.append("how it ended")
    return _said(own, old), table, ("Plain Keras", columns, [_plain(r) for r in plain])


def _said(own: Sequence[_Planned], old: Sequence[_Planned]) -> str:
    if not own:
        return "Nothing trained."
    ratios = [each.step for each in own]
    off = max(own, key=lambda each: abs(each.step - each.promise))
    said = (
        f"A step by the callback's plan takes {min(ratios):.2f} to {max(ratios):.2f} "
        f"times plain Keras's on the same card. The promise is off by at most "
        f"{100 * abs(off.step - off.promise):.0f} points ({_where(off.row)}: "
        f"{off.promise:.2f} promised, {off.step:.2f} seen). "
        f"Ops that were timed one by one add up to {off.slowness:.1f} times plain's "
        f"step there, to at most {_slowest(own):.1f} times where the promise holds: "
        "copies that such ops would hide are waited for."
    )
    beside = {_place(each.row): each for each in own}
    pairs = [(beside[_place(e.row)].step, e.step) for e in old]
    if pairs:
        news, olds = zip(*pairs, strict=True)
        said += (
            f" With copies by ops on the host, as they were first made, the U-Net's "
            f"plans take {min(olds):.2f} to {max(olds):.2f} times instead of "
            f"{min(news):.2f} to {max(news):.2f}."
        )
    return said


def _slowest(own: Sequence[_Planned]) -> float:
    """Of those whose promise holds."""
    return max((e.slowness for e in own if _keeps(e)), default=1.0)


def _keeps(each: _Planned) -> bool:
    return abs(each.step - each.promise) <= _NEAR


def goals(head: Head, rows: Rows) -> Iterator[tuple[str, bool | None]]:
    """The four that were set, and which trainings missed them."""
    del head
    own = _planned(rows, _CALLBACK)
    judged = {
        f"a step takes at most {_MOST} times plain Keras's": lambda e: e.step <= _MOST,
        f"the promise is within {100 * _NEAR:.0f} points": _keeps,
        "copies and bytes are those of the plan, and plain Keras's own": (
            lambda e: e.is_copied_as_planned
        ),
        "the peak is at most the promised one": lambda e: (
            e.row["peak_bytes"] <= e.row["promised_peak_bytes"]
        ),
    }
    for text, is_met in judged.items():
        missed = [_where(each.row) for each in own if not is_met(each)]
        ends = f": not so for {'; '.join(missed)}" if missed else ""
        yield f"{text}{ends}.", bool(own) and not missed


def _planned(rows: Rows, way: str) -> list[_Planned]:
    ended = [row for row in rows if not row["error"]]
    plain = {_place(row): row for row in ended if row["way"] == _PLAIN}
    return [_Planned(r, plain[_place(r)]) for r in ended if r["way"] == way]


def _place(row: Row) -> tuple[str, ...]:
    return row["card"], row["link"], row["model"], str(row["number"])


def _step(row: Row) -> float:
    return statistics.median(row["step_seconds"][_SKIPPED:])


def _named(row: Row) -> list[str]:
    model = _MODELS[row["model"]].format(row["number"])
    return [model, _CARDS[row["card"]], _LINKS[row["link"]]]


def _where(row: Row) -> str:
    return ", ".join(_named(row))


def _cells(each: _Planned) -> list[str]:
    row = each.row
    return [
        *_named(row),
        WAYS[row["way"]],
        format_bytes(row["budget_bytes"]),
        f"{each.promise:.2f}",
        f"{each.step:.2f}",
        each.copies,
        each.bytes_out,
        each.hidden,
        str(row["recomputed_ops"]),
        format_bytes(row["promised_peak_bytes"]),
        format_bytes(row["peak_bytes"]),
        f"{row['planning_seconds']:.0f} s",
    ]


def _plain(row: Row) -> list[str]:
    if row["error"]:
        return [*_named(row), "", "", "", shortened(row["error"])]
    times = (_step(row), row["busy_seconds"])
    peak = format_bytes(row["peak_bytes"])
    return [*_named(row), *(f"{1e3 * each:.1f} ms" for each in times), peak, "trained"]
