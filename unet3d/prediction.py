"""Segments subjects with a run's weights, on the grid of their own files.

    PREDICTIONS/<name>.nii.gz      uint8 labels of the run's scheme, the source's grid
    PREDICTIONS/cubes/<name>.npz   labels on the network's cube, before any resizing;
                                   none of patches, and none of several runs
    PREDICTIONS/probabilities/<name>.nii.gz
                                   float32, a volume for each region, the background's
                                   first where labels exclude each other; if asked for
    PREDICTIONS/predictions.json   run, scheme, size, subjects, and subjects left out

Labels on the cube serve to compare resolutions as the case study did, with a single
resizing from one cube to another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from lms.errors import HostMemoryError
from lms.storage.files import draft_of
from unet3d.cache import SKIP, usable
from unet3d.checkpoints import load_weights
from unet3d.data import Box, as_image, prepare_images, to_labels
from unet3d.extras import nibabel
from unet3d.files import read_json, write_arrays, write_json
from unet3d.lines import log
from unet3d.memory import memory_support, prediction_bytes
from unet3d.patches import STEP, predictor
from unet3d.reading import Images, Scan, read_images
from unet3d.runs import Configuration, read_configuration
from unet3d.schemes import as_text
from unet3d.shapes import Shape, as_shape
from unet3d.splits import read_split
from unet3d.streaming import (
    Piece,
    Room,
    cut_pieces,
    find_room,
    patched_pieces,
    resized_pieces,
)
from unet3d.subjects import Problem, SubjectFiles, find_subjects, stem_of
from unet3d.training import build_for, precision_of
from unet3d.volumes import read_source

__all__ = ["Predicted", "Style", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The segmented subjects, and the problems of the subjects left out."""

    names: tuple[str, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How to predict: by `mirrored` images too; are probabilities `kept`?

    `host` is the most bytes that the process may take; half of the free ones if None.
    Patches lie `step` patches apart.
    """

    mirrored: bool = False
    kept: bool = False
    host: int | None = None
    step: float = STEP

    def __post_init__(self) -> None:
        """Refuse patches that overlap entirely, or leave gaps."""
        if not 0 < self.step <= 1:
            raise ValueError(
                f"`--step-size` must be above 0 and at most 1 patch, got {self.step}. "
                "Use 0.5."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """A run's network; `validated` subjects were no part of its training."""

    model: Any
    configuration: Configuration
    callbacks: list[Any]
    validated: frozenset[str]


def predict(  # noqa: PLR0913 - by what, of whom, where to
    run: Path | Sequence[Path],
    data: Path,
    output: Path,
    *,
    subjects: str = "validation",
    size: int | None = None,
    skip_bad: bool = False,
    style: Style = Style(),
    progress: Progress | None = None,
) -> Predicted:
    """Segment subjects by the weights of a run's best epoch, and write their labels.

    `subjects` are `validation`, `all`, a name, or a text file with a name per line. The
    network is convolutional, so `size` may differ from the run's.

    Probabilities of several runs are averaged on the subject's own grid. Validation
    subjects are predicted by the runs that validate with them, and by no other.
    """
    runs = [run] if isinstance(run, Path) else list(run)
    configurations = [read_configuration(folder) for folder in runs]
    _check_alike(runs, configurations)
    scheme, written = configurations[0].task, output / "predictions.json"
    own = [str(folder.resolve()) for folder in runs]
    said = read_json(written) if written.is_file() else {"runs": own}
    if said.get("runs", [said.get("run")]) != own:
        other = ", ".join(map(str, said.get("runs", [said.get("run")])))
        raise ValueError(
            "`output` must be a folder without predictions of another run, got "
            f"'{output}' with those of '{other}'. Choose another folder."
        )
    found = find_subjects(data, scheme.channels, bare=True)
    # A bad subject stops the prediction only if it was asked for.
    wanted = _wanted(runs, subjects)
    if subjects == "validation" and all(files.is_test for files in found.subjects):
        splits = [read_split(folder / "split.json") for folder in runs]
        known = {name for one in splits for name in (*one.training, *one.validation)}
        if known.isdisjoint(files.name for files in found.subjects):
            wanted = None  # a folder of images that no run has seen
    bad = [p for p in found.problems if wanted is None or p.name in wanted]
    everyone = {
        files.name: files for files in usable(found, skip_bad=not bad or skip_bad)
    }
    chosen = _choose(everyone, wanted, {p.name for p in found.problems}, data)
    bars = progress or Progress(disable=True)
    bar = bars.add_task("Segmenting", total=len(chosen))
    problems, names = list(bad), []
    every = [_open(*one, size) for one in zip(runs, configurations, strict=True)]
    models = [(network.model, network.configuration) for network in every]
    device = max(filter(None, (prediction_bytes(m) for m, _ in models)), default=None)
    for files in chosen:
        networks = every
        if subjects == "validation" and wanted is not None:
            networks = [one for one in every if files.name in one.validated]
        try:
            room = find_room(files, models, device, style.host, kept=style.kept)
            log(bars, f"Segmenting {files.name}: {room.in_words}")
            _segment(networks, files, output, style, room)
            names.append(files.name)
            log(bars, f"Segmented {files.name}, {len(names)} of {len(chosen)}")
        except (ValueError, HostMemoryError) as error:
            if not skip_bad:
                if isinstance(error, HostMemoryError):  # the subject is not bad
                    raise
                raise ValueError(f"{error} {SKIP}") from error
            problems.append(Problem(name=files.name, message=str(error)))
            (output / f"{files.name}.nii.gz").unlink(missing_ok=True)  # stale
        bars.advance(bar)
    write_json(
        written,
        {
            "run": own[0],
            "runs": own,
            "label scheme": scheme.name,
            "scheme": asdict(scheme),
            "size": min(every[0].model.input_shape[1:4]),
            "mirrored": style.mirrored,
            "subjects": names,
            "left out": [problem.message for problem in problems],
        },
    )
    return Predicted(names=tuple(names), problems=tuple(problems))


def _check_alike(runs: Sequence[Path], found: Sequence[Configuration]) -> None:
    for folder, other in zip(runs, found, strict=True):
        if (other.task, other.softmax) != (found[0].task, found[0].softmax):
            raise ValueError(
                "`run` must be runs of one label scheme, all with a softmax or all "
                f"without, to be averaged, got '{runs[0]}' and '{folder}'. "
                "Predict them one by one."
            )


def _open(run: Path, configuration: Configuration, size: int | None) -> _Network:
    with precision_of(configuration):
        model = build_for(configuration, configuration.shape if size is None else size)
        load_weights(model, _weights(run))
    support, split = memory_support(configuration), run / "split.json"
    return _Network(
        model=model,
        configuration=configuration,
        callbacks=[support] if support else [],
        validated=frozenset(read_split(split).validation if split.is_file() else ()),
    )


def _weights(run: Path) -> Path:
    path = run / "best.weights.h5"
    if not path.is_file():
        raise FileNotFoundError(
            f"`run` must hold weights, got '{run}' without {path.name}. "
            "Train for at least one epoch."
        )
    return path


def _wanted(runs: Sequence[Path], subjects: str) -> tuple[str, ...] | None:
    """Return the names that are asked for; None for all."""
    if subjects == "all":
        return None
    if subjects == "validation":
        splits = [read_split(run / "split.json") for run in runs]
        return tuple(dict.fromkeys(name for one in splits for name in one.validation))
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
    networks: Sequence[_Network],
    files: SubjectFiles,
    output: Path,
    style: Style,
    room: Room,
) -> None:
    """Predict one subject and write its files; from patches there is no cube."""
    path, scan = output / f"{files.name}.nii.gz", read_images(files)
    scheme, grid = networks[0].configuration.task, as_shape(scan.images.shape[:3])
    kept = output / "probabilities" / path.name
    for stale in (kept, output / "cubes" / f"{files.name}.npz"):
        stale.unlink(missing_ok=True)
    seen = [_prepared(network, scan) for network in networks]
    box = seen[0][1]
    shape = as_shape(scan.images[box].shape[:3])
    del scan
    sources = [
        (network, _predicted(network, x, mirrored=style.mirrored))
        for network, (x, _) in zip(networks, seen, strict=True)
    ]
    del seen
    if len(networks) == 1 and networks[0].configuration.patch is None:
        cube = {"labels": to_labels(sources[0][1], scheme)}
        write_arrays(output / "cubes" / f"{files.name}.npz", cube)
    labels, whole = np.zeros(grid, np.uint8), None
    if style.kept:
        whole = np.zeros((*grid, room.labels), np.float32)
        whole[..., 0] = networks[0].configuration.softmax  # background outside
    for row in cut_pieces(shape, room.rows, whole=room.whole):
        parts = [_pieces(*one, shape, row, style) for one in sources]
        for piece, *found in zip(row, *parts, strict=True):
            mean: Any = sum(found[1:], found[0])
            if len(found) > 1:
                mean /= len(found)
            labels[box][piece] = to_labels(mean, scheme)
            if whole is not None:
                whole[box][piece] = mean
    _save(labels, files, path)
    if whole is not None:
        _save(whole, files, kept)


def _prepared(network: _Network, scan: Scan) -> tuple[Images, Box]:
    patched = network.configuration.patch is not None
    size = None if patched else network.model.input_shape[1]
    return prepare_images(scan, size, network.configuration.common)


def _predicted(network: _Network, x: Images, *, mirrored: bool) -> NDArray[np.float32]:
    """Return the probabilities of the cube; of patches the volume, to be predicted."""
    if network.configuration.patch is not None:
        return x
    options: Any = {"callbacks": network.callbacks, "mirrored": mirrored}
    return predictor(network.model, **options)(x)


def _pieces(
    network: _Network,
    source: NDArray[np.float32],
    shape: Shape,
    row: Sequence[Piece],
    style: Style,
) -> Iterator[NDArray[np.float32]]:
    if network.configuration.patch is None:
        return resized_pieces(source, shape, row)
    model, callbacks = network.model, network.callbacks
    one = predictor(model, callbacks=callbacks, mirrored=style.mirrored)
    patch = model.input_shape[1:4]
    return patched_pieces(source, patch, one, shape, row, style.step)


def _save(voxels: np.ndarray, files: SubjectFiles, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path) as draft:
        nibabel.save(as_image(voxels, read_source(files.images[0].path)), draft)
