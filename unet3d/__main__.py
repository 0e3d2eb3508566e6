"""The command line of the case study: `python -m unet3d COMMAND --help`."""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from lms.commands.endings import end_well
from lms.errors import WorkersError
from lms.machine.ranks import read_placement
from lms.units import parse_size
from lms.workers.launching import launch
from unet3d.lines import counting, grouped, several, some
from unet3d.options import check_folder, settle
from unet3d.runs import RECIPES
from unet3d.schemes import SCHEMES, choose_scheme
from unet3d.scores import EmptyRule
from unet3d.shapes import in_words, read_shape, read_spacing
from unet3d.subjects import Problem
from unet3d.synthesis import synthesize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after `python -m unet3d`; the process's own if left out.

    Returns:
        The exit status: 0 for success, 2 for a bad value or file, 3 if the device or
        the host has too little memory, 130 after Ctrl-C, 143 after SIGTERM.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    options.words = words
    console = Console(stderr=True)

    def run() -> int:
        if options.run in (_train, _plan):
            if options.run is _plan:
                options.output = options.output or Path("plan")  # is not written
            options.configuration = settle(options, words[1:], read_placement().size)
        for name in ("output", "cache"):
            if name in options:
                check_folder(vars(options)[name], name)
        return options.run(options, console)

    def say(text: str) -> None:
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)

    return end_well(run, say, advice=lambda: _how_to_go_on(options))


def _how_to_go_on(options: argparse.Namespace) -> str:
    run = options.output if options.run is _train else None
    if run is None or not (run / "configuration.json").is_file():
        return ""
    words = ["python", "-m", "unet3d", "train", "--resume", str(run)]
    return f"Resume the run: {shlex.join(words)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unet3d", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_synthesize(commands)
    _add_check(commands)
    _add_train(commands)
    _add_plan(commands)
    _add_predict(commands)
    _add_evaluate(commands)
    return parser


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default is not None and action.default is not False
        return super()._get_help_string(action) if shown else action.help


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, formatter_class=_Help)
    command.set_defaults(run=run, parser=command)
    return command


def _add_synthesize(commands: Any) -> None:
    text = "write BraTS-like subjects as NIfTI files, labels brats2017"
    command = _command(commands, "synthesize", text, _synthesize)
    command.add_argument("--output", type=Path, required=True, help="folder to fill")
    command.add_argument("--subjects", type=int, default=12, help="their number")
    command.add_argument("--seed", type=int, default=0, help="same seed, same voxels")


def _add_check(commands: Any) -> None:
    text = "look at all subjects before training; exit status 1 if any is bad"
    command = _command(commands, "check", text, _check)
    command.add_argument("--data", type=Path, required=True, help="folder of subjects")
    _add_scheme(command)
    _add_grouping(command)
    command.add_argument(
        "--unlabelled", action="store_true", help="check scans without labels"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="file of findings")


def _add_train(commands: Any) -> None:
    _add_training(_command(commands, "train", "train the network", _train))


def _add_plan(commands: Any) -> None:
    text = "predict memory and time of a training on a card; nothing is trained"
    command = _command(commands, "plan", text, _plan)
    text = (
        "a card such as rtx-3090, its numbers as for lms plan, or its memory, such as "
    )
    text += "12GiB, at the rates of the known card of the nearest memory"
    command.add_argument("--card", required=True, help=text)
    _add_training(command)


def _add_training(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--data", type=Path, help="folder of subjects")
    _add_scheme(command)
    # The labels decide, and labelled voxels.
    command.set_defaults(softmax=False, background=False, windows=())
    add("--output", type=Path, help="folder of the run")
    add("--size", type=int, default=144, help="voxels along each axis")
    text = "train on patches of volumes of one spacing; voxels along each axis, or "
    text += "along depth, height and width, such as 48x160x160"
    add("--patch", type=_by(read_shape), metavar="N", help=text)
    text = "mm along depth, height and width of the volumes that patches are cut from, "
    text += "such as 3x0.8x0.8; the scans' median if left out; keep resamples nothing"
    add("--spacing", type=_by(read_spacing), metavar="MM", help=text)
    text = (
        "residual-encoder, nnU-Net's network; residual-encoder-m, -l or -xl with the "
    )
    text += "patch and batch of its preset; or your own, package:builder (see "
    add("--model", metavar="NAME", help=f"{text}unet3d/builders.py)")
    text = "loss, optimizer and rate: the case study's or nnU-Net's"
    add("--recipe", choices=RECIPES, default=RECIPES[0], help=text)
    add("--filters", type=int, default=16, help="channels of the U-Net's top level")
    add("--depth", type=int, default=5, help="levels of the U-Net")
    add("--batch-size", type=int, default=1, help="subjects per step")
    add("--epochs", type=int, default=300, help="most epochs")
    add("--steps-per-epoch", type=int, help="one pass over the subjects if left out")
    add("--seed", type=int, default=0, help="decides every random choice")
    add(
        "--lms",
        action=argparse.BooleanOptionalAction,
        help="large model support where a step does not fit; on if left out",
    )
    add(
        "--budget", type=_by(_size), metavar="SIZE", help="device memory, such as 12GiB"
    )
    add("--mixed-precision", action="store_true", help="activations in float16")
    text = "heads without normalisation, as always where labels exclude each other"
    add("--linear-heads", action="store_true", help=text)
    boolean = argparse.BooleanOptionalAction
    add("--augment", dest="varied", action=boolean, default=True, help="vary examples")
    text = "workers of this host to train on, each with a GPU of its own; leave it out "
    text += "in a job of Slurm, Ray or Kubernetes"
    add("--workers", type=int, default=1, metavar="N", help=text)
    _add_grouping(command)
    text = "split.json of another run, or nnU-Net's splits_final.json"
    add("--split", type=Path, help=text)
    text = "validate with this fold, from 0, and train with the others; by the data's "
    text += "splits_final.json if there is one; a fifth is drawn by --seed if left out"
    add("--fold", type=int, metavar="K", help=text)
    add("--folds", type=int, default=5, metavar="N", help="number of folds")
    text = "resume the run in FOLDER, or in --output, with the run's options; only "
    text += "--data, --epochs, --lms, --budget, --workers and --cache may change"
    add("--resume", nargs="?", type=Path, const=True, metavar="FOLDER", help=text)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    text = "write losses, Dice, peak and swapped bytes to RUN/tensorboard"
    add("--tensorboard", action="store_true", help=text)
    add("--cache", type=Path, default=Path(base) / "unet3d", help="prepared subjects")
    _add_skip(command)


def _add_predict(commands: Any) -> None:
    command = _command(commands, "predict", "segment subjects with a run", _predict)
    add = command.add_argument
    text = "folders of trainings; probabilities of several are averaged"
    add("--run", type=Path, required=True, nargs="+", dest="trained", help=text)
    add("--data", type=Path, required=True, help="folder of subjects")
    add("--output", type=Path, required=True, help="folder to write labels to")
    text = "validation, each by the runs that did not train with it, all, or a file of "
    add("--subjects", default="validation", help=f"{text}names")
    add("--size", type=int, help="voxels the network sees; the run's if left out")
    text = "average over the eight mirror images; eight times the time"
    add("--mirror", action="store_true", help=text)
    text = "write probabilities beside the labels"
    add("--save-probabilities", action="store_true", help=text)
    text = "patches between the starts of patches; 1 is the fastest, without overlap"
    add("--step-size", type=float, default=0.5, metavar="STEP", help=text)
    text = "most memory of the process, such as 6GiB; larger volumes are put together "
    text += "in pieces; half of the free memory if left out"
    add("--host-memory", type=_by(_size), metavar="SIZE", help=text)
    _add_skip(command)


def _add_evaluate(commands: Any) -> None:
    text = "score predictions: tables, tests and figures"
    command = _command(commands, "evaluate", text, _evaluate)
    add = command.add_argument
    add("--truth", type=Path, required=True, help="folder of subjects")
    _add_scheme(command)
    add("--predictions", type=Path, nargs="+", required=True, help="folders")
    text = "one name per folder, to average folders of one name, or to pool folds"
    add("--names", nargs="+", help=f"{text}; the folders' names if left out")
    add("--output", type=Path, required=True, help="folder of the report")
    text = "a region that truth and prediction lack: Dice 1 as in BraTS, or no score"
    add("--empty-rule", choices=("brats", "nan"), default="brats", help=text)
    add("--size", type=int, help="compare on cubes, as the case study did")
    _add_skip(command)


def _add_scheme(command: argparse.ArgumentParser) -> None:
    text = f"what the labels mean: {', '.join(SCHEMES)}, or a JSON file; the data's "
    text += "own dataset.json if left out; synthesised data is brats2017"
    command.add_argument("--label-scheme", metavar="SCHEME", help=text)
    command.set_defaults(scheme=None)


def _add_skip(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out subjects that cannot be used, and list them",
    )


def _add_grouping(command: argparse.ArgumentParser) -> None:
    text = "regular expression that finds the patient in a subject's name, or none; "
    text += "BraTS's names are known if left out"
    command.add_argument("--group-by", metavar="REGEX", help=text)


def _size(text: str) -> int:
    return parse_size(text, name="budget")


def _by(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `read` for an option, whose message argparse prints."""

    def reading(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reading


def _bars(console: Console, *, shown: bool = True) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not shown,
        transient=not console.is_terminal,  # a log has lines instead
    )


def _synthesize(options: argparse.Namespace, console: Console) -> int:
    with _bars(console) as progress:
        bar = progress.add_task("Writing subjects", total=options.subjects)
        count = counting(progress, bar, "Wrote")
        folders = synthesize(
            options.output,
            subjects=options.subjects,
            seed=options.seed,
            progress=lambda _: count(),
        )
    console.print(f"Subjects written to {options.output}: {len(folders)}")
    return 0


def _check(options: argparse.Namespace, console: Console) -> int:
    from unet3d.check_view import check

    return check(
        options.data,
        choose_scheme(options.label_scheme, options.data, bare=options.unlabelled),
        group_by=options.group_by,
        labelled=not options.unlabelled,
        json=options.json,
        bars=_bars(console),
    )


def _train(options: argparse.Namespace, console: Console) -> int:
    there = read_placement().size
    if options.workers != 1 and there == 1:
        command = [sys.executable, "-m", "unet3d", *options.words]
        return launch(command, workers=options.workers)
    if options.workers not in (1, there):
        raise WorkersError(
            f"`--workers` must be left out in a job, which has {there} workers, got "
            f"{options.workers}. Start the job with as many as you want."
        )
    _set_up_tensorflow()
    import tensorflow as tf

    from lms import join

    workers = join()
    from unet3d.training import train

    # A resumed run must end in the weights of an uninterrupted one.
    tf.config.experimental.enable_op_determinism()
    try:
        with _bars(console, shown=workers.is_chief) as progress:
            outcome = train(
                options.configuration,
                options.output,
                cache=options.cache,
                split=options.split,
                resume=bool(options.resume),
                skip_bad=options.skip_bad,
                progress=progress,
                workers=workers,
                tensorboard=options.tensorboard,
            )
    except tf.errors.ResourceExhaustedError as error:
        volume = in_words(options.configuration.shape)
        console.print(
            f"Error: Could not train a step of {volume}: device memory is too small "
            f" ({_reason(error)}). Train with --lms, or a smaller --size or "
            "--patch.",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        return 3
    if not workers.is_chief:
        return 0
    _list_problems(outcome.problems, console)
    if not outcome.computed:
        console.print(
            f"Ran {several(outcome.epochs, 'epoch')} on a card that computes nothing: "
            "no Dice, and no weights are kept. Memory and plan are in "
            f"{options.output}.",
            soft_wrap=True,
        )
        return 0
    console.print(
        f"Trained {several(outcome.epochs, 'epoch')} with "
        f"{several(len(outcome.split.training), 'subject')}; best Dice of "
        f"{several(len(outcome.split.validation), 'validation subject')} "
        f"{outcome.best:.3f}. Everything is in {options.output}.",
        soft_wrap=True,
    )
    return 0


def _plan(options: argparse.Namespace, _: Console) -> int:
    _set_up_tensorflow()
    from unet3d.planning import card_named, plan

    card = card_named(options.card)
    return plan(options.configuration, card, Console(soft_wrap=True, highlight=False))


def _predict(options: argparse.Namespace, console: Console) -> int:
    _set_up_tensorflow()
    from unet3d.prediction import Style, predict

    with _bars(console) as progress:
        predicted = predict(
            options.trained,
            options.data,
            options.output,
            subjects=options.subjects,
            size=options.size,
            skip_bad=options.skip_bad,
            style=Style(
                mirrored=options.mirror,
                kept=options.save_probabilities,
                host=options.host_memory,
                step=options.step_size,
            ),
            progress=progress,
        )
    _list_problems(predicted.problems, console)
    console.print(
        f"Segmented {several(len(predicted.names), 'subject')} in {options.output}."
    )
    return 0


def _evaluate(options: argparse.Namespace, console: Console) -> int:
    from unet3d.figures import MOST_SETS
    from unet3d.prediction_sets import open_set
    from unet3d.report import comparison_table, evaluate, summary_table, write_report

    names = options.names or [folder.name for folder in options.predictions]
    if len(names) != len(options.predictions):
        raise ValueError(
            f"`names` must be one for each of {len(options.predictions)} folders of "
            f"predictions, got {len(names)}. Name them in the same order."
        )
    if len(set(names)) > MOST_SETS:
        raise ValueError(
            f"`names` must be at most {MOST_SETS} different ones, to stay apart in a "
            f"figure, got {len(set(names))}. Evaluate some of them at a time."
        )
    # Letters that the font lacks are boxes in figures, and right in tables.
    warnings.filterwarnings("ignore", "Glyph")
    scheme = choose_scheme(options.label_scheme, options.truth)
    if scheme is None:
        raise ValueError(
            "`--label-scheme` must be given where there is no dataset.json, got none "
            f"for '{options.truth}'. Add it."
        )
    folders = zip(names, options.predictions, strict=True)
    sets = [open_set(name, folder, scheme) for name, folder in folders]
    with _bars(console) as progress:
        report = evaluate(
            options.truth,
            scheme,
            sets,
            rule=EmptyRule(options.empty_rule),
            size=options.size,
            skip_bad=options.skip_bad,
            progress=counting(progress, progress.add_task("Scoring"), "Scored"),
        )
    write_report(report, options.output, truth=options.truth, scheme=scheme, sets=sets)
    shown = Console()
    shown.print(summary_table(report))
    if any(report.tests.values()):
        shown.print(comparison_table(report))
    _list_problems(report.problems, console)
    if report.unasked:
        text = f"Not predicted, so not scored: {', '.join(report.unasked)}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    console.print(f"Tables and figures are in {options.output}.")
    return 0


def _reason(error: Exception) -> str:
    """Return the message's line that names the tensor that did not fit."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if "OOM" in line), lines[0])


def _set_up_tensorflow() -> None:
    """Set variables that TensorFlow reads on import."""
    # Without oneDNN a 3-D convolution on a CPU takes three times the memory and ten
    # times the time.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # Without a GPU driver TensorFlow logs an error that there is no GPU.
    has_driver = any(map(os.path.exists, ("/proc/driver/nvidia", "/dev/dxg")))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if has_driver else "3")


def _list_problems(problems: Sequence[Problem], console: Console) -> None:
    for reason, names in grouped((p.name, p.message) for p in problems).items():
        text = f"Left out {some(names)}: {reason}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
