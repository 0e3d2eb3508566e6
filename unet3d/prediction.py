"""Segments subjects with a run's weights, on the grid of their own files.

    PREDICTIONS/<name>.nii.gz      uint8 labels of the run's scheme, the source's grid
    PREDICTIONS/cubes/<name>.npz   labels on the network's cube, before any resizing;
                                   none where the network sees patches
    PREDICTIONS/predictions.json   run, scheme, size, subjects, and subjects left out

Labels on the cube serve to compare resolutions as the case study did, with a single
resizing from one cube to another.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from lms.storage.files import draft_of
from unet3d.cache import SKIP, usable
from unet3d.checkpoints import load_weights
from unet3d.data import Box, as_image, prepare_images, restore, to_labels
from unet3d.extras import nibabel
from unet3d.files import read_json, write_arrays, write_json
from unet3d.lines import log
from unet3d.memory import memory_support
from unet3d.patches import predict_volume
from unet3d.reading import Images, read_images
from unet3d.runs import Configuration, read_configuration
from unet3d.schemes import as_text
from unet3d.splits import read_split
from unet3d.subjects import Problem, SubjectFiles, find_subjects, stem_of
from unet3d.training import build_for, precision_of
from unet3d.volumes import read_source

__all__ = ["Predicted", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The segmented subjects, and the problems of the subjects left out."""

    names: tuple[str, ...]
    problems: tuple[Problem, ...]


def predict(  # noqa: PLR0913 - by what, of whom, where to
    run: Path,
    data: Path,
    output: Path,
    *,
    subjects: str = "validation",
    size: int | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Predicted:
    """Segment subjects by the weights of a run's best epoch, and write their labels.

    `subjects` are `validation`, `all`, a name, or a text file with a name per line. The
    network is convolutional, so `size` may differ from the run's.
    """
    configuration = read_configuration(run)
    scheme, written = configuration.task, output / "predictions.json"
    other = read_json(written).get("run") if written.is_file() else str(run.resolve())
    if other != str(run.resolve()):
        raise ValueError(
            "`output` must be a folder without predictions of another run, got "
            f"'{output}' with those of '{other}'. Choose another folder."
        )
    found = find_subjects(data, scheme.channels, bare=True)
    # A bad subject stops the prediction only if it was asked for.
    wanted = _wanted(run, subjects)
    if subjects == "validation" and all(files.is_test for files in found.subjects):
        wanted = None  # a folder of images alone
    bad = [p for p in found.problems if wanted is None or p.name in wanted]
    everyone = {
        files.name: files for files in usable(found, skip_bad=not bad or skip_bad)
    }
    chosen = _choose(everyone, wanted, {p.name for p in found.problems}, data)
    bars = progress or Progress(disable=True)
    bar = bars.add_task("Segmenting", total=len(chosen))
    problems, names = list(bad), []
    with precision_of(configuration):
        side = configuration.side if size is None else size
        model = build_for(configuration, side)
        load_weights(model, _weights(run))
        support = memory_support(configuration)
        callbacks = [support] if support else []
        for files in chosen:
            try:
                _segment(model, files, configuration, output, callbacks)
                names.append(files.name)
                log(bars, f"Segmented {files.name}, {len(names)} of {len(chosen)}")
            except ValueError as error:
                if not skip_bad:
                    raise ValueError(f"{error} {SKIP}") from error
                problems.append(Problem(name=files.name, message=str(error)))
                (output / f"{files.name}.nii.gz").unlink(missing_ok=True)  # stale
            bars.advance(bar)
    write_json(
        written,
        {
            "run": str(run.resolve()),
            "label scheme": scheme.name,
            "scheme": asdict(scheme),
            "size": side,
            "subjects": names,
            "left out": [problem.message for problem in problems],
        },
    )
    return Predicted(names=tuple(names), problems=tuple(problems))


def _weights(run: Path) -> Path:
    path = run / "best.weights.h5"
    if not path.is_file():
        raise FileNotFoundError(
            f"`run` must hold weights, got '{run}' without {path.name}. "
            "Train for at least one epoch."
        )
    return path


def _wanted(run: Path, subjects: str) -> tuple[str, ...] | None:
    """Return the names that are asked for; None for all."""
    if subjects == "all":
        return None
    if subjects == "validation":
        return read_split(run / "split.json").validation
    path = Path(subjects)
    if not path.is_file():
        return (subjects,)
    names = [stem_of(line.strip()) for line in as_text(path).splitlines()]
    return tuple(name for name in names if name)


def _choose(
    everyone: dict[str, SubjectFiles],
    wanted: Sequence[str] | None,
    bad: set[str],
    data: Path,
) -> list[SubjectFiles]:
    if wanted is None:
        return list(everyone.values())
    for name in wanted:
        if name not in everyone and name not in bad:
            raise ValueError(
                f"`subjects` must name subjects of '{data}', got {name}, which is not "
                "there. Pass --subjects all for all that are, a name, a file of names, "
                "or the data that the run was trained with."
            )
    return [everyone[name] for name in wanted if name in everyone]


def _segment(
    model: Any,
    files: SubjectFiles,
    configuration: Configuration,
    output: Path,
    callbacks: list[Any],
) -> None:
    """Predict one subject and write its files; from patches there is no cube."""
    path = output / f"{files.name}.nii.gz"
    images, scheme = read_images(files)[0], configuration.task
    probabilities, box = _probabilities(model, files, images, configuration, callbacks)
    depth, height, width = images.shape[:3]
    labels = restore(probabilities, box, (depth, height, width), scheme)
    source = read_source(files.images[0].path)
    if configuration.patch is None:
        cube = to_labels(probabilities, scheme)
        write_arrays(output / "cubes" / f"{files.name}.npz", {"labels": cube})
    with draft_of(path) as draft:
        nibabel.save(as_image(labels, source), draft)


def _probabilities(
    model: Any,
    files: SubjectFiles,
    images: Images,
    configuration: Configuration,
    callbacks: list[Any],
) -> tuple[NDArray[np.float32], Box]:
    """Predict on the cube, or with patches on the whole crop; return the crop's box."""
    size = model.input_shape[1]
    try:
        x, box = prepare_images(images, None if configuration.patch else size)
    except ValueError as error:
        raise ValueError(f"subject {files.name}: {error}") from error
    patched = configuration.patch is not None
    return predict_volume(model, x, patched=patched, callbacks=callbacks), box
