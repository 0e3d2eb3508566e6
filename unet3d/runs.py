"""The parts of a training run: its settings and its folder.

RUN/configuration.json    settings, cache, workers, versions, subjects left out
RUN/split.json            names of training and validation subjects
RUN/state.npz             the whole training state after each epoch
RUN/log.csv               one line per epoch
RUN/best.weights.h5       weights of the epoch with the best validation Dice
RUN/last.weights.h5       weights of the last epoch
RUN/tensorboard/          scalars for TensorBoard; only with --tensorboard
RUN/memory.json           memory and seconds of each step, planned and measured
RUN/plan.json             the plan of the step; only where a step was planned
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unet3d.data import Common
from unet3d.files import read_data, read_json, write_json
from unet3d.schemes import LabelScheme, scheme_named
from unet3d.shapes import CUBE, Shape, Sides, as_shape
from unet3d.splits import check_rule

__all__ = ["RECIPES", "RESIDUAL", "Configuration", "Surroundings", "check_same"]
__all__ += ["check_start", "read_configuration", "read_surroundings", "versions"]
__all__ += ["write_configuration"]

# Files of a run's folder beside its configuration, which is written first.
_PARTS = ("state.npz", "split.json", "log.csv", "best.weights.h5", "last.weights.h5")
RECIPES = ("case-study", "nnunet")
RESIDUAL = "residual-encoder"  # or with a preset of `unet3d.residual`, such as -xl
_PACKAGES = ("tensorflow", "keras", "numpy", "scipy", "nibabel", "tflms")
# Settings that a resumed run may change: they decide no number. By nnU-Net's recipe the
# epochs decide the learning rate.
_FREE = frozenset({"data", "epochs", "lms", "budget"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings of a run, as in `python -m unet3d train --help`.

    `scheme` is the content of the file `label_scheme`, None where `label_scheme` is a
    name of `unet3d.schemes.SCHEMES`. Without a `patch` volumes are resized to `size`.
    With `lms` None only steps that do not fit are planned. `budget` is in bytes.
    `softmax` is set where labels exclude each other, as is `background`, whose Dice the
    case study's loss counts then; runs of versions without them go on without them.
    A `model` of one's own is package:builder (`unet3d.builders`); filters, depth and
    linear heads are the U-Net's. Without a `fold` a fifth of the subjects is drawn to
    validate with, by `seed`. Patches are of volumes of a common `spacing`, mm along
    (depth, height, width), or of their own. `windows` is that of `unet3d.data.Common`.
    """

    data: str
    label_scheme: str
    size: int = 144
    filters: int = 16
    depth: int = 5
    batch_size: int = 1
    epochs: int = 300
    steps_per_epoch: int | None = None
    group_by: str | None = None
    seed: int = 0
    mixed_precision: bool = False
    linear_heads: bool = False
    varied: bool = True
    lms: bool | None = None
    budget: int | None = None
    scheme: LabelScheme | None = None
    patch: int | tuple[int, int, int] | None = None
    softmax: bool = False
    background: bool = False
    fold: int | None = None
    folds: int = 5
    recipe: str = "case-study"
    model: str | None = None
    spacing: tuple[float, float, float] | None = None
    windows: tuple[tuple[float, float, float, float] | None, ...] = ()

    def __post_init__(self) -> None:
        """Refuse impossible settings; the network checks its own settings."""
        sides = [("patch", side) for side in as_shape(self.patch or 1)]
        names = ("batch_size", "epochs", "steps_per_epoch", "seed")
        for name, value in (*sides, *((name, getattr(self, name)) for name in names)):
            bound = 0 if name == "seed" else 1
            if value is not None and value < bound:
                raise ValueError(
                    f"`{name}` must be at least {bound}, got {value}. Ask for more, or "
                    "leave it out."
                )
        if self.fold is not None and not 0 <= self.fold < self.folds:
            raise ValueError(
                f"`fold` must be from 0 to {self.folds - 1}, one of {self.folds} "
                f"folds, got {self.fold}. Choose another, or more by --folds."
            )
        if self.folds < 2:
            raise ValueError(f"`folds` must be at least 2, got {self.folds}. Use 5.")
        if self.recipe not in RECIPES:
            raise ValueError(
                f"`recipe` must be one of {', '.join(RECIPES)}, got {self.recipe!r}. "
                "Choose one."
            )
        check_rule(self.group_by)
        if self.lms is False and self.budget is not None:
            raise ValueError(
                "`budget` must come with large model support, got one without. Leave "
                "out --no-lms or --budget."
            )

    @property
    def follows_nnunet(self) -> bool:
        """True for nnU-Net's recipe (`unet3d.recipes`)."""
        return self.recipe == "nnunet"

    @property
    def shape(self) -> Shape:
        """(depth, height, width) of what the network sees."""
        return as_shape(self.patch or self.size)

    @property
    def voxel(self) -> Sides:
        """The sides of a voxel that the network's levels follow."""
        return self.spacing or CUBE

    @property
    def common(self) -> Common:
        """The spacing and windows of all scans."""
        return Common(spacing=self.spacing, windows=self.windows)

    @property
    def prepared(self) -> int | None:
        """Voxels along each axis after resizing; None where nothing is resized."""
        return None if self.patch else self.size

    @property
    def task(self) -> LabelScheme:
        """The label scheme: channels, labels and regions."""
        return self.scheme or scheme_named(self.label_scheme)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The cache and the number of workers of a run; a resumed run may change both."""

    cache: str | None = None
    workers: int | None = None


def write_configuration(
    run: Path,
    configuration: Configuration,
    *,
    left_out: Sequence[str] = (),
    around: Surroundings = Surroundings(),
) -> None:
    """Write a run's settings, and the versions of Python and packages."""
    settings = asdict(configuration)
    if configuration.patch:
        del settings["size"]  # nothing is resized
    content = {
        "configuration": settings,
        "surroundings": asdict(around),
        "versions": versions(),
        "left out": list(left_out),
    }
    write_json(run / "configuration.json", content)


def read_configuration(run: Path) -> Configuration:
    """Read a run's settings."""
    path = run / "configuration.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"`run` must be the folder of a training, got '{run}' without "
            "configuration.json. Pass the folder that `train` wrote."
        )
    return read_data(
        path,
        Configuration,
        part="configuration",
        rule="hold the settings of this version",
        advice="Train again, or use the version it names.",
    )


def read_surroundings(run: Path) -> Surroundings:
    """Read a run's cache and number of workers; None where its folder has none."""
    path = run / "configuration.json"
    if "surroundings" not in read_json(path):
        return Surroundings()
    return read_data(
        path,
        Surroundings,
        part="surroundings",
        rule="say where the run was trained",
        advice="Remove that part.",
    )


def check_start(run: Path, configuration: Configuration, *, resume: bool) -> None:
    """Refuse a folder that a training must not write to."""
    if (run / "configuration.json").exists():
        if not resume:
            raise ValueError(
                f"`output` must be a folder without a run, got '{run}', which holds "
                "one. Go on with it by --resume, or choose another folder."
            )
        check_same(run, configuration)
        return
    part = next((name for name in _PARTS if (run / name).exists()), None)
    if part:
        raise ValueError(
            f"`output` must be a run or a folder without one, got '{run}' with {part} "
            "and no configuration.json. Choose another folder."
        )


def check_same(run: Path, configuration: Configuration) -> None:
    """Refuse to resume a run of other settings."""
    before = read_configuration(run)
    for field in fields(Configuration):
        old, new = getattr(before, field.name), getattr(configuration, field.name)
        decides = field.name not in _FREE
        decides |= field.name == "epochs" and configuration.follows_nnunet
        decides &= field.name != "size" or not before.patch  # nothing is resized
        if decides and old != new:
            raise ValueError(
                f"`{field.name}` must be that of the run in '{run}', {old!r}, got "
                f"{new!r}. Leave it out, or choose another output."
            )


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that decide numbers."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
