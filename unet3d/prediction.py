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
from unet3d.data import as_image, brain_box, prepare_images, resize_channels, to_labels
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

__all__ = ["Predicted", "Style", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The segmented subjects, and the problems of the subjects left out."""

    names: tuple[str, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How to predict: by `mirrored` images too; are probabilities `kept`?"""

    mirrored: bool = False
    kept: bool = False


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
    for files in chosen:
        networks = every
        if subjects == "validation" and wanted is not None:
            networks = [one for one in every if files.name in one.validated]
        try:
            _segment(networks, files, output, style)
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
            "run": own[0],
            "runs": own,
            "label scheme": scheme.name,
            "scheme": asdict(scheme),
            "size": every[0].model.input_shape[1],
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
        model = build_for(configuration, configuration.side if size is None else size)
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
    networks: Sequence[_Network], files: SubjectFiles, output: Path, style: Style
) -> None:
    """Predict one subject and write its files; from patches there is no cube."""
    path, images = output / f"{files.name}.nii.gz", read_images(files)[0]
    scheme, total = networks[0].configuration.task, None
    try:
        box = brain_box(images)
    except ValueError as error:
        raise ValueError(f"subject {files.name}: {error}") from error
    kept = output / "probabilities" / path.name
    for stale in (kept, output / "cubes" / f"{files.name}.npz"):
        stale.unlink(missing_ok=True)
    for network in networks:
        found = _probabilities(network, images, mirrored=style.mirrored)
        depth, height, width = images[box].shape[:3]
        own = resize_channels(found, (depth, height, width))
        total = own if total is None else total + own
        if len(networks) == 1 and network.configuration.patch is None:
            cube = {"labels": to_labels(found, scheme)}
            write_arrays(output / "cubes" / f"{files.name}.npz", cube)
    assert total is not None  # there is a run
    if len(networks) > 1:
        total /= len(networks)
    labels = np.zeros(images.shape[:3], np.uint8)
    labels[box] = to_labels(total, scheme)
    _save(labels, files, path)
    if style.kept:
        whole = np.zeros((*images.shape[:3], total.shape[-1]), np.float32)
        whole[..., 0] = networks[0].configuration.softmax  # background outside
        whole[box] = total
        _save(whole, files, kept)


def _save(voxels: np.ndarray, files: SubjectFiles, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path) as draft:
        nibabel.save(as_image(voxels, read_source(files.images[0].path)), draft)


def _probabilities(
    network: _Network, images: Images, *, mirrored: bool
) -> NDArray[np.float32]:
    """Predict on the cube, or with patches on the whole crop."""
    model, patched = network.model, network.configuration.patch is not None
    x, _ = prepare_images(images, None if patched else model.input_shape[1])
    options: Any = {"callbacks": network.callbacks, "mirrored": mirrored}
    return predict_volume(model, x, patched=patched, **options)
