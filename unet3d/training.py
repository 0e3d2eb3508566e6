"""Trains the network: data, callbacks, resuming, and large model support.

    folder --find, prepare--> cache --batches--> fit --after each epoch--> RUN

Where a step does not fit the device, `unet3d.memory` makes it fit, with equal numbers.

Sources: Adam at 5e-4, halved after 10 epochs without progress, the end after 50, as in
D. G. Ellis's Keras code; the split of 80/20 from the case study.

Known weaknesses: validation is one subject at a time, where the case study took two: so
each volume counts alike, and every step has one shape. Each of several workers
validates with all subjects.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
from rich.progress import Progress

from lms import DataParallel
from lms.errors import extra
from lms.machine.ranks import Placement
from lms.workers.collectives import Workers
from unet3d.batches import Load, training_batches, validation_batches
from unet3d.builders import build_own
from unet3d.cache import load_prepared, prepare_all, usable
from unet3d.checkpoints import MONITOR, ResumePoint, restore_state
from unet3d.files import remove_drafts
from unet3d.lines import counting, differing_spacings, log, several, tell
from unet3d.memory import (
    Shown,
    computes,
    memory_in_words,
    memory_support,
    plan_in_words,
    scalar_writers,
    write_memory,
)
from unet3d.model import build_unet, check_divisible
from unet3d.recipes import compile_for, watchers_of
from unet3d.runs import Configuration, Surroundings, check_start, write_configuration
from unet3d.schemes import LabelScheme
from unet3d.shapes import as_shape, find_levels, in_words
from unet3d.splits import (
    NNUNET_FOLDS,
    Split,
    doubtful_names,
    known_split,
    make_fold,
    make_split,
    without,
    write_split,
)
from unet3d.subjects import Found, Problem, SubjectFiles, find_subjects
from unet3d.validation import Validated, WrittenDice, cut_patches
from unet3d.volumes import header_grid

__all__ = ["Outcome", "build_for", "precision_of", "train"]

_LONGEST = 86_400.0  # seconds in which the chief must prepare the data set
ALONE = Workers(placement=Placement())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The complete epochs, earlier starts included, and the best validation Dice.

    `computed` is False on a card that computes nothing: then there are no weights.
    `split` names training and validation subjects, `problems` the subjects left out.
    """

    epochs: int
    best: float
    split: Split
    problems: tuple[Problem, ...]
    computed: bool = True


def train(  # noqa: PLR0913 - the run, where it is, and what may happen
    configuration: Configuration,
    run: Path,
    *,
    cache: Path,
    split: Path | None = None,
    resume: bool = False,
    skip_bad: bool = False,
    progress: Progress | None = None,
    workers: Workers = ALONE,
    tensorboard: bool = False,
) -> Outcome:
    """Train, or resume a training.

    Several workers (`lms.join`) call this with the same arguments: each takes its part
    of the subjects, the learning rate grows with their number, and the chief writes.
    All workers must see the same folders. `split` is a file; None draws a split, or
    takes the run's when resuming. `tensorboard` writes scalars to RUN/tensorboard.

    For weights that are equal bit for bit after a kill, turn on
    `tf.config.experimental.enable_op_determinism` first, as the command line does.
    """
    bars = progress or Progress(disable=True)
    if tensorboard:
        with extra("tensorboard"):
            import_module("tensorboard")  # what Keras's callback writes with
    with precision_of(configuration):
        model = build_for(configuration)  # refuses a bad size before data is read
        check_start(run, configuration, resume=resume)
        workers.gather("", "the run's folder")  # before the chief writes to it
        rule, fold = configuration.group_by, configuration.fold
        listed = Path(configuration.data) / NNUNET_FOLDS
        is_new = split is None and not (run / "split.json").is_file()
        if fold is not None and is_new and listed.is_file():
            split = listed
        given = known_split(run, split, group_by=rule, fold=fold)
        found = _find(configuration, given)
        if not workers.is_chief:
            workers.gather("", "ready", timeout=_LONGEST)  # the chief fills the cache
        subjects, problems = _prepare(
            found, configuration, cache, bars, skip_bad=skip_bad
        )
        bad = {one.name: one for one in problems}
        names = {*subjects}
        if fold is not None:  # all folds are drawn of all labelled subjects
            rest = ((name, one.rest) for name, one in bad.items())
            names |= {name for name, files in rest if not (files and files.is_test)}
        drawn = given or _draw(sorted(names), configuration)
        chosen = without(drawn, bad) if given or fold is not None else drawn
        if workers.is_chief:
            remove_drafts(run)
            reasons = [problem.message for problem in problems]
            around = Surroundings(cache=str(cache.resolve()), workers=workers.size)
            write_configuration(run, configuration, left_out=reasons, around=around)
            write_split(run / "split.json", chosen)
            workers.gather("", "ready")
        options: Any = {"scheme": configuration.task, "cache": cache}
        seen = options | {"size": configuration.prepared}
        seen |= {"common": configuration.common}
        loads, wholes = (
            {name: partial(load_prepared, f, **how) for name, f in subjects.items()}
            for how in (seen, options | {"size": None})
        )
        history = _fit(
            *(model, configuration, run, chosen, (loads, wholes), bars, workers),
            scalars=tensorboard,
        )
    return Outcome(
        epochs=len(history),
        best=max((row[MONITOR] for row in history), default=float("nan")),
        split=chosen,
        problems=problems,
        computed=computes(),
    )


def build_for(
    configuration: Configuration, size: int | Sequence[int] | None = None
) -> Any:
    """Build a run's network and optimizer; `size` changes no weight."""
    shape, is_new = size or configuration.shape, size is None
    if configuration.model is not None:
        model = build_own(configuration, shape, supervised=is_new)
    else:
        name = "patch" if configuration.patch else "size"
        levels = find_levels(configuration.voxel, most=configuration.depth)
        check_divisible(as_shape(shape), levels.divisor, name)
        model = build_unet(
            size=shape,
            filters=configuration.filters,
            depth=configuration.depth,
            modalities=len(configuration.task.channels),
            labels=len(configuration.task.regions),
            batch_size=configuration.batch_size if is_new else None,
            seed=configuration.seed,
            linear_heads=configuration.linear_heads,
            softmax=configuration.softmax,
            supervised=configuration.follows_nnunet and is_new,
            spacing=configuration.voxel,
        )
    compile_for(model, configuration)
    # Variables made while a step is traced would make Keras trace it again.
    model.optimizer.build(model.trainable_variables)
    return model


@contextmanager
def precision_of(configuration: Configuration) -> Generator[None, None, None]:
    """Set the dtype policy of a run, and restore the earlier policy at the end."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(
        "mixed_float16" if configuration.mixed_precision else "float32"
    )
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _find(configuration: Configuration, split: Split | None) -> Found:
    """Find the subjects of the split; without a split, all that are no test set."""
    found = find_subjects(Path(configuration.data), configuration.task.channels)
    if split is None:
        # A test set beside the training set has no truth to train with.
        labelled = tuple(f for f in found.subjects if not f.is_test)
        if len(labelled) > 1:  # refuse names that cannot be split at once
            _draw([files.name for files in labelled], configuration)
        return Found(subjects=labelled, problems=found.problems)
    names = {*split.training, *split.validation}
    there = {s.name for s in found.subjects} | {p.name for p in found.problems}
    for name in sorted(names - there):
        raise ValueError(
            f"`split` must name subjects of '{configuration.data}', got {name}, which "
            "is not there. Pass the data that the split was made for."
        )
    return Found(
        subjects=tuple(s for s in found.subjects if s.name in names),
        problems=tuple(p for p in found.problems if p.name in names),
    )


def _draw(names: Sequence[str], configuration: Configuration) -> Split:
    rule, fold = configuration.group_by, configuration.fold
    if fold is None:
        return make_split(names, configuration.seed, group_by=rule)
    return make_fold(names, fold, configuration.folds, group_by=rule)


def _prepare(
    found: Found,
    configuration: Configuration,
    cache: Path,
    bars: Progress,
    *,
    skip_bad: bool,
) -> tuple[dict[str, SubjectFiles], tuple[Problem, ...]]:
    subjects = usable(found, skip_bad=skip_bad)
    if configuration.spacing is None:
        grids = {files.name: header_grid(files) for files in subjects}
        spacings = {name: grid and grid[1] for name, grid in grids.items()}
        for warning in differing_spacings(spacings):
            tell(bars, f"Warning: {warning}; no volume is resampled")
    for warning in doubtful_names([s.name for s in subjects], configuration.group_by):
        tell(bars, f"Warning: {warning}")
    bar = bars.add_task("Preparing subjects", total=len(subjects))
    log(bars, f"Preparing {several(len(subjects), 'subject')} in {cache}")
    prepared = prepare_all(
        subjects,
        size=configuration.prepared,
        scheme=configuration.task,
        cache=cache,
        common=configuration.common,
        skip_bad=skip_bad,
        progress=counting(bars, bar, "Prepared"),
    )
    by_name = {files.name: files for files in prepared.subjects}
    return by_name, (*found.problems, *prepared.problems)


def _fit(  # noqa: PLR0913 - what is trained, with what, and who shows it
    model: Any,
    configuration: Configuration,
    run: Path,
    split: Split,
    every: tuple[dict[str, Load], dict[str, Load]],
    bars: Progress,
    workers: Workers,
    *,
    scalars: bool,
) -> list[dict[str, float]]:
    failed = list[Exception]()
    loads, wholes = (
        {name: _remembering(load, failed) for name, load in some.items()}
        for some in every
    )
    known = restore_state(model, run)
    first = known["epoch"] if known else 0
    _check_epochs(workers, first)
    _scale_rate(model, workers.size / (known.get("workers", 1) if known else 1))
    if known and (known["finished"] or first >= configuration.epochs):
        return known["history"]
    together = configuration.batch_size * workers.size
    steps = configuration.steps_per_epoch or -(-len(split.training) // together)
    watchers = watchers_of(configuration, workers=workers.size)
    is_real = computes()
    is_kept = is_real and workers.is_chief
    scheme, patch = configuration.task, configuration.patch
    is_written = scheme.competes and is_real
    if known:  # a run of an earlier version goes on with the Dice that it began with
        is_written &= known.get("written", False)
    kept: Any = {"workers": workers.size, "writes": is_kept, "written": is_written}
    point = ResumePoint(run, watchers, known, **kept)
    swapping = memory_support(configuration)
    validated = [loads[name] for name in split.validation]
    written = WrittenDice(
        [Validated(seen=loads[n], whole=wholes[n]) for n in split.validation],
        scheme,
        patched=patch is not None,
        callbacks=[swapping] if swapping else [],
    )
    watching = [written, *watchers] if is_written else watchers
    shown = Shown(
        bars,
        configuration.epochs,
        steps,
        point.history,
        plan=lambda: plan_in_words(swapping),
        memory=lambda: memory_in_words(swapping),
        computes=is_real,
    )
    averaging = DataParallel(workers)
    callbacks = [averaging, *([swapping] if swapping else []), *watching, point, shown]
    callbacks += scalar_writers(run, swapping) if scalars and is_kept else []
    tell(bars, _beginning(model, configuration, run, split, together, first))
    try:
        model.fit(
            training_batches(
                [loads[name] for name in split.training],
                _shape(model, scheme),
                steps=steps,
                seed=configuration.seed,
                first_epoch=first,
                batch_size=configuration.batch_size,
                varied=configuration.varied,
                patches=configuration.patch is not None,
                by_label=configuration.follows_nnunet,
                spacing=configuration.voxel,
                worker=(workers.rank, workers.size),
            ),
            validation_data=validation_batches(
                cut_patches(validated, patch) if patch else validated,
                _shape(model, scheme),
            ),
            initial_epoch=first,
            epochs=configuration.epochs,
            steps_per_epoch=steps,
            callbacks=callbacks,
            shuffle=False,  # the order is made already
            verbose=0,
        )
    except BaseException:
        with suppress(OSError):  # the error on its way says more
            write_memory(run, swapping, workers)
        if failed:  # TensorFlow turns the error into a text with a traceback
            raise failed[0] from None
        raise
    write_memory(run, swapping, workers)
    return point.history


def _shape(model: Any, scheme: LabelScheme) -> tuple[Sequence[int], int, int]:
    """Return ((depth, height, width), channels, regions)."""
    return model.input_shape[1:4], model.input_shape[-1], len(scheme.regions)


def _remembering(load: Load, failed: list[Exception]) -> Load:
    """Wrap `load`, to append its error to `failed`."""

    def loaded() -> Any:
        try:
            return load()
        except Exception as error:
            failed.append(error)
            raise

    return loaded


def _beginning(
    model: Any,
    configuration: Configuration,
    run: Path,
    split: Split,
    together: int,
    first: int,
) -> str:
    network = configuration.model or f"a U-Net, depth {configuration.depth},"
    begins = f"Going on after epoch {first}" if first else "Training"
    return (
        f"{begins}: {several(len(split.training), 'subject')} of {configuration.data}, "
        f"and {len(split.validation)} to validate with; "
        f"{'patches' if configuration.patch else 'volumes'} of "
        f"{in_words(configuration.shape)}{_spacing_of(configuration)}, "
        f"{together} in a step; {network} of {model.count_params():,} weights; "
        f"at most {several(configuration.epochs, 'epoch')}; "
        f"into {run}"
    )


def _spacing_of(configuration: Configuration) -> str:
    if configuration.spacing is None:
        return ""
    return f" at {' x '.join(f'{side:.3g}' for side in configuration.spacing)} mm"


def _check_epochs(workers: Workers, first: int) -> None:
    """Refuse workers that see different folders."""
    epochs = workers.gather(str(first), "the epoch to go on with")
    if len(set(epochs)) > 1:
        raise ValueError(
            f"`output` must be one folder for all workers, got runs that go on with "
            f"epochs {', '.join(epochs)}. Use a folder that all of them see."
        )


def _scale_rate(model: Any, factor: float) -> None:
    """Multiply the learning rate by the growth of a step's examples."""
    if factor != 1:
        rate = model.optimizer.learning_rate
        rate.assign(rate * factor)
