"""The words of the command: run, or show."""

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.gpu_validation.catalogue import MACHINE, catalogue, net_for
from experiments.gpu_validation.claims import Claim, judge_rows
from experiments.gpu_validation.running import NAMED, Runner
from experiments.ledger import read_lines
from profiling.record import circumstances, write_json

__all__ = ["main"]

_SHORT = 7.8  # minutes of the short form
_WORDS = {True: "holds", False: "FAILS", None: "open"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or show.

    Args:
        arguments: The words after `python -m experiments.gpu_validation`.

    Returns:
        The exit status: 1 if a claim fails, 2 if there is nothing to show, 3 if there
        is no GPU.
    """
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    if options.command == "run":
        return _run(options, console)
    results = options.output / "results.jsonl"
    if not results.exists():
        print(
            f"gpu_validation: `--output` must hold results.jsonl, got "
            f"{str(options.output)!r}. Measure first, with `run`.",
            file=sys.stderr,
        )
        return 2
    _, rows = read_lines(results)
    for row in rows:
        _say(row, console)
    return _show_claims(judge_rows(rows), console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu_validation",
        description="Is the library's picture of TensorFlow on a GPU right?",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, or go on measuring")
    show = commands.add_parser("show", help="print what was measured")
    for command in (run, show):
        command.add_argument("--output", type=Path, required=True, metavar="DIR")
    run.add_argument("--short", action="store_true", help="at most eight minutes")
    run.add_argument("--minutes", type=float, help="ends after so many")
    run.add_argument("--trials", nargs="+", metavar="NAME", help="only these")
    text = "repeat what did not end well"
    run.add_argument("--again", action="store_true", help=text)
    text = "a folder that gets a copy after each trial"
    run.add_argument("--copy-to", type=Path, metavar="DIR", help=text)
    return parser


def _run(options: argparse.Namespace, console: Console) -> int:
    settings = {"short": options.short}
    minutes = options.minutes or (_SHORT if options.short else 24 * 60)
    runner = Runner(
        folder=options.output,
        settings=settings,
        deadline=time.monotonic() + 60 * minutes,
        rows=_finished(options.output / "results.jsonl", settings, again=options.again),
        say=partial(_say, console=console),
        copy_to=options.copy_to,
    )
    is_new = not options.output.exists()
    options.output.mkdir(parents=True, exist_ok=True)
    left = runner.run([MACHINE])
    machine = runner.row("machine") or {"outcome": "left", "error": "no time for it"}
    if machine["outcome"] != "done":
        if is_new:
            shutil.rmtree(options.output)
        print(f"gpu_validation: {machine['error']}", file=sys.stderr)
        return 3
    card = machine["hardware"]
    trials = catalogue(net_for(card), card["flops"], short=options.short)
    wanted = options.trials or [trial.name for trial in trials]
    left += runner.run([trial for trial in trials if trial.name in wanted])
    return _conclude(runner, left, console)


def _finished(
    path: Path, settings: Mapping[str, Any], *, again: bool
) -> list[dict[str, Any]]:
    """Rows of the call before; what it asked for otherwise is put aside."""
    if not path.exists():
        return []
    head, rows = read_lines(path)
    if head["settings"] != settings:
        path.replace(path.with_name(f"results-{int(path.stat().st_mtime)}.jsonl"))
        return []
    good = ("done", "out of memory") if again else {row["outcome"] for row in rows}
    return [row for row in rows if row["outcome"] in good]


def _say(row: Mapping[str, Any], console: Console) -> None:
    colour = {"done": "green", "skipped": "yellow", "out of memory": "yellow"}
    style = colour.get(row["outcome"], "red")
    known = [f"{row['seconds']:.0f} s"]
    if row["name"] == "machine":
        known += [f"{name} {row.get(name)}" for name in NAMED]
    if row.get("median_seconds"):
        known.append(f"{row['median_seconds']:.3g} s a step")
    if row.get("peak_bytes"):
        known.append(f"peak {row['peak_bytes'] / 2**20:.1f} MiB")
    if row["error"]:
        known.append(row["error"])
    console.print(f"[{style}]{row['outcome']:13}[/] ", end="")
    console.print(f"{row['name']}: {', '.join(known)}", markup=False)


def _conclude(runner: Runner, left: Sequence[str], console: Console) -> int:
    claims = judge_rows(runner.rows)
    head = circumstances() | {"settings": runner.settings}
    found = {"claims": [asdict(claim) for claim in claims], "left": list(left)}
    write_json(runner.folder / "summary.json", head | found | {"trials": runner.rows})
    runner.copy_out()
    code = _show_claims(claims, console)
    if left:
        console.print(f"no time for {len(left)} trials: run the same command again")
    console.print(f"written: {runner.folder / 'summary.json'}")
    return code


def _show_claims(claims: Sequence[Claim], console: Console) -> int:
    for claim in claims:
        line = f"{_WORDS[claim.holds]:6}{claim.text}: {claim.found}"
        console.print(line, markup=False)
    return int(any(claim.holds is False for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
