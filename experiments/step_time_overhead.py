"""What does swapping cost, against size, on two links, by the callback and IBM's rule?

The case study's method: steps in a small device over steps of plain Keras, of the same
size, in a large one. The small device has 1.05 times what plain Keras takes at the
first size; the large one has enough. Each trial is a training in a process of its own;
its step is the median of all but the first two and those that were disturbed
(`experiments.quiet`), of which there may be twice as many more.

The links are those of the case study's servers, scaled so that copying weighs as much
against computing as there: the time to copy a card's memory once, over the published
step of 144^3, which filled that card; here, the time to copy what plain Keras takes at
the first size, over its step. For x86 (PCIe 3.0 x16) that ratio is 16 GiB at 12 GB/s
over 216 s / 228 steps; for AC922 (NVLink 2.0) it is at 64 GB/s over 197 s / 228. The
rates are those of `lms.machine.hardware`.

The callback takes all of the small device less its margin. IBM's rule is tuned for 0.9
of it, as IBM's TFLMS did; where that fails, for less.

No plan can make a step faster than computing alone, nor than a link's lane carries the
plan's bytes: max(computing, bytes / bandwidth) is drawn as the link's least for each
plan. It leaves out the time of ops that run twice.

Known weaknesses: copies and ops share the CPU's cores. On a CPU TensorFlow runs two ops
at once where it can, which the rule's plans leave to it; the callback's run one by one,
as on a GPU (`experiments.half_the_memory` measures that part).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.ledger import Row
from experiments.question import LINK, Answer, settings_of
from experiments.quiet import quiet_median
from experiments.runner import Book, unet_flags
from experiments.servers import LATENCY, SERVERS
from experiments.step_time_overhead_finding import finding, plot
from lms.machine.hardware import LinkRates
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "step_time_overhead"
_ENOUGH = 8192 * MIB
_SPARE = 1.05  # of what plain Keras takes at the first size

# Parts of the small device that a plan is made for, the next where the first fails;
# None for what it takes of itself.
_SHARES: Mapping[str, tuple[float | None, ...]] = {
    "threshold": (None, 0.8, 0.6),
    "budget": (None,),
}


def _add_settings(parser: Any) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=(48, 56, 64, 72, 80))
    parser.add_argument(
        "--links", nargs="+", choices=tuple(SERVERS), default=[*SERVERS]
    )
    parser.add_argument("--ways", nargs="+", choices=tuple(_SHARES), default=[*_SHARES])
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=14, help="of each training")
    parser.add_argument("--seed", type=int, default=0)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    if options.steps < 3:
        raise SystemExit(
            f"--steps must be at least 3, got {options.steps}: the first two do not "
            "count. Ask for more."
        )
    names = ("sizes", "filters", "depth", "steps", "seed")
    book = Book(options, settings_of(options, *names) | {"spare": _SPARE}, _FOLDER)
    plain = {size: _train_plainly(size, options, book) for size in options.sizes}
    base = plain[options.sizes[0]]
    memory = int(_SPARE * base["peak_bytes"]) // MIB * MIB
    book.say(f"the small device has {format_bytes(memory)}")
    for server in options.links:
        step = quiet_median(base, skipped=2)
        rate = SERVERS[server].scaled_rate(peak=base["peak_bytes"], step=step)
        book.say(f"{server}'s link, scaled: {rate / 1e9:.3f} GB/s each way")
        for way in options.ways:
            for size in options.sizes[1:]:
                _train_planned(server, rate, way, size, memory, options, book)


def _train_plainly(size: int, options: Any, book: Book) -> Row:
    key = {"kind": "plain", "way": "plain", "size": size}
    row = book.row(
        key,
        name=f"{size}^3 in a large device",
        memory=_ENOUGH,
        flags=_flags("plain", size, options),
    )
    if row["error"]:
        raise SystemExit(f"{size}^3 does not train plainly: {row['error']}")
    return row


def _train_planned(  # noqa: PLR0913 - what differs between trials
    server: str,
    rate: float,
    way: str,
    size: int,
    memory: int,
    options: Any,
    book: Book,
) -> None:
    for share in _SHARES[way]:
        planned = () if share is None else (f"--budget={int(share * memory)}",)
        words = "" if share is None else f", {share:.0%}"
        key = {"kind": "planned", "server": server, "way": way, "size": size}
        link = LinkRates(h2d=rate, d2h=rate, latency=LATENCY)
        row = book.row(
            key | {"memory_bytes": memory, "link_rate": rate, "share": share},
            name=f"{size}^3, {way}{words}, link like {server}'s",
            memory=memory,
            flags=_flags(way, size, options, *planned),
            link=link,
        )
        if row["error"] is None:
            return


def _flags(way: str, size: int, options: Any, *more: str) -> tuple[str, ...]:
    return unet_flags(way, size, options, f"--at-most={3 * options.steps}", *more)


ANSWER = Answer(
    name="step_time_overhead",
    title="What swapping costs, against size",
    emulated=LINK,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    plot=plot,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
