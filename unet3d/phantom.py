"""Draws one synthetic brain with a tumour: a stand-in for a BraTS subject.

The brain is a super-ellipsoid inside its bounding box, made of fluid, grey and white
matter whose borders are displaced by smooth random fields; the tumour is three nested
irregular balls (oedema, enhancing rim, necrotic core). Each modality maps tissues to
its own intensities, then adds partial volume, a smooth bias field and noise.

Assumptions: the phantom is not a model of any patient. A network that scores well on
phantoms has shown that it trains, nothing more.

Arrays here have NIfTI's axis order (x, y, z): x to the left, y to the back, z up.

Sources: extents from the BraTS 2017 table of IBM's case study "TensorFlow Large Model
Support: 3D image segmentation"; label values from Menze et al., IEEE TMI 34(10), 2015,
and the BraTS 2017 data description; contrasts between tissues are ordinal knowledge
(for example: fluid is dark in T1 and FLAIR, bright in T2), the values are chosen.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unet3d.extras import ndimage

__all__ = ["EXTENTS", "INTENSITIES", "Phantom", "draw_phantom"]

Field = NDArray[np.floating]
Mask = NDArray[np.bool_]

# (x, y, z) extents of the brain in voxels of 1 mm: least, mean, greatest.
EXTENTS = ((124, 151, 121), (140, 171, 140), (159, 191, 150))

_TISSUES = ("fluid", "grey", "white", "oedema", "core", "enhancing")

# One row per modality, one mean intensity per tissue, in the order of _TISSUES.
INTENSITIES = {
    "flair": (110.0, 390.0, 320.0, 640.0, 400.0, 560.0),
    "t1": (140.0, 330.0, 460.0, 310.0, 220.0, 320.0),
    "t1ce": (150.0, 350.0, 470.0, 320.0, 230.0, 820.0),
    "t2": (820.0, 430.0, 310.0, 640.0, 700.0, 520.0),
}

_FLUID, _GREY, _WHITE, _OEDEMA, _CORE, _ENHANCING = range(len(_TISSUES))
_LABELS = np.array([0, 0, 0, 2, 1, 4], dtype=np.uint8)  # by tissue


@dataclass(frozen=True, slots=True, kw_only=True)
class Phantom:
    """One brain in its bounding box.

    `images` has int16 intensities (x, y, z) for each modality, 0 outside the brain, at
    least 1 inside; `labels` 0 healthy or outside, 1 core, 2 oedema, 4 enhancing.
    """

    images: dict[str, NDArray[np.int16]]
    labels: NDArray[np.uint8]


def draw_phantom(rng: np.random.Generator) -> Phantom:
    """Draw a brain whose size, anatomy and tumour come from `rng` alone.

    The brain touches every face of its bounding box; all three labels occur.
    """
    extents = _draw_extents(rng)
    axes = _unit_axes(extents)
    depth = _depth_below_surface(axes, rng)
    brain = depth > 0
    tissue = _healthy_tissue(axes, depth, rng)
    _add_tumour(tissue, brain, axes, rng)
    images = {
        name: _render(np.array(row, np.float32), tissue, brain, rng)
        for name, row in INTENSITIES.items()
    }
    labels = np.where(brain, _LABELS[tissue], np.uint8(0))
    return Phantom(images=images, labels=labels)


def _draw_extents(rng: np.random.Generator) -> tuple[int, ...]:
    """Draw (x, y, z) extents in voxels around the mean, inside the table's range."""
    least, mean, greatest = (np.array(row) for row in EXTENTS)
    # A common factor for the head's size, then a little for its shape.
    drawn = mean * (1 + rng.normal(0, 0.03)) * (1 + rng.normal(0, 0.02, 3))
    return tuple(int(n) for n in np.clip(np.rint(drawn), least, greatest))


def _unit_axes(extents: tuple[int, ...]) -> tuple[Field, Field, Field]:
    """Return voxel centres along each axis in (-1, 1), which broadcast over the box."""
    x, y, z = (((np.arange(n) + 0.5) / n * 2 - 1).astype(np.float32) for n in extents)
    return x[:, None, None], y[None, :, None], z[None, None, :]


def _smooth_field(
    shape: tuple[int, ...], wavelength: float, rng: np.random.Generator
) -> Field:
    """Draw a smooth random field of mean about 0 and deviation about 1 over `shape`.

    Random values on a grid of one knot per half `wavelength` (voxels), spread by one
    Gaussian kernel per axis: three thin matrix products instead of a filter.
    """
    spacing = wavelength / 2
    counts = [int(np.ceil(n / spacing)) + 4 for n in shape]
    knots = rng.standard_normal(counts, dtype=np.float32)
    x, y, z = (_kernel(*pair, spacing) for pair in zip(shape, counts, strict=True))
    return np.tensordot(y @ np.tensordot(x, knots, axes=1), z.T, axes=1)


def _kernel(voxels: int, knots: int, spacing: float) -> Field:
    """Return weights (voxels, knots): a Gaussian around each voxel, of norm 1."""
    offset = np.arange(voxels)[:, None] / spacing - np.arange(knots)[None, :] + 1.5
    kernel = np.exp(-(offset**2)).astype(np.float32)
    return kernel / np.sqrt((kernel**2).sum(axis=1, keepdims=True))


def _depth_below_surface(
    axes: tuple[Field, Field, Field], rng: np.random.Generator
) -> Field:
    """Return the depth: 1 at the centre, 0 on the brain's surface, negative outside.

    The surface is displaced everywhere but at the six poles, so that the brain keeps
    exactly the extents that were drawn.
    """
    x, y, z = axes
    # Flatter below than above, and narrower in front (negative y) than behind.
    x = x * (1 + 0.10 * np.clip(-y, 0, 1) ** 2)
    radius = (np.abs(x) ** 2.3 + np.abs(y) ** 2.3 + np.abs(z) ** 2.3) ** (1 / 2.3)
    off_pole = (x * y) ** 2 + (y * z) ** 2 + (z * x) ** 2
    off_pole = 3 * off_pole / np.maximum(radius, 0.1) ** 4
    underside = 0.11 * off_pole * np.clip(-z, 0, 1)
    wobble = 0.025 * off_pole * _smooth_field(radius.shape, 45, rng)
    return (1 - radius - wobble - underside).astype(np.float32)


def _healthy_tissue(
    axes: tuple[Field, Field, Field], depth: Field, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw the tissue of each voxel: folded cortex, white matter, deep grey, fluid."""
    x, y, z = axes
    # Folds are where a field crosses zero: thin winding sheets, like sulci.
    folds = np.abs(_smooth_field(depth.shape, 12, rng))
    sheets = np.exp(-((folds / 0.35) ** 2))
    tissue = np.full(depth.shape, _WHITE, dtype=np.uint8)
    tissue[depth < 0.11 + 0.26 * sheets] = _GREY
    tissue[depth < 0.015 + 0.16 * np.clip(sheets - 0.75, 0, 1) / 0.25] = _FLUID
    side = np.abs(x) + 0.01 * _smooth_field(depth.shape, 30, rng)
    _fill(tissue, _GREY, (side, y, z), (0.20, 0.10, -0.08), (0.11, 0.17, 0.15))
    _fill(tissue, _GREY, (side, y, z), (0.33, -0.05, -0.02), (0.08, 0.24, 0.16))
    size = rng.uniform(0.85, 1.2)
    _add_fluid_spaces(tissue, (side, y, z), depth, size)
    return tissue


def _add_fluid_spaces(
    tissue: NDArray[np.uint8],
    axes: tuple[Field, Field, Field],
    depth: Field,
    size: float,
) -> None:
    """Carve the ventricles and the cleft between the hemispheres, in place."""
    side, y, z = axes
    arch = z - 0.14 + 0.35 * y**2  # the lateral ventricles bend down at both ends
    bodies = (side - 0.05 - 0.22 * np.clip(y, 0, 1), y, arch)
    semi = (0.085 * size, 0.45 * size, 0.10 * size)
    _fill(tissue, _FLUID, bodies, (0.05, 0.0, 0.0), semi)
    _fill(tissue, _FLUID, (side, y, z), (0.0, 0.05, -0.1), (0.03 * size, 0.16, 0.16))
    cleft = (side < 0.016) & (depth < 0.42) & (z > -0.1)
    tissue[(side < 0.055) & (depth < 0.46) & (z > -0.1)] = _GREY
    tissue[cleft] = _FLUID


def _fill(
    tissue: NDArray[np.uint8],
    value: int,
    axes: tuple[Field, Field, Field],
    centre: tuple[float, float, float],
    semi_axes: tuple[float, float, float],
) -> None:
    """Set `value` inside an ellipsoid, in place; all in units of half the extents."""
    terms = zip(axes, centre, semi_axes, strict=True)
    squares = [((axis - c) / s) ** 2 for axis, c, s in terms]
    tissue[squares[0] + squares[1] + squares[2] < 1] = value


def _add_tumour(
    tissue: NDArray[np.uint8],
    brain: Mask,
    axes: tuple[Field, Field, Field],
    rng: np.random.Generator,
) -> None:
    """Grow oedema, an enhancing rim and a necrotic core into the tissue, in place."""
    shape = tissue.shape
    centre = _tumour_centre(rng)
    radius = rng.uniform(13, 24)  # mm, of the core
    factors = rng.uniform(0.85, 1.15, 3).tolist()
    terms = zip(axes, centre, shape, factors, strict=True)
    squares = [((axis - c) * n / 2 * f) ** 2 for axis, c, n, f in terms]
    distance = np.sqrt(squares[0] + squares[1] + squares[2]) / radius
    rough = 0.10 * _smooth_field(shape, 1.1 * radius, rng)
    fine = 0.05 * _smooth_field(shape, 9, rng)
    spread = rng.uniform(1.5, 2.0)
    reach = spread * (1 + 0.18 * _smooth_field(shape, 1.4 * radius, rng)) + 2 * fine
    # Oedema follows white matter, stops short in cortex, fades across the midline and
    # spares fluid.
    matter = brain & (tissue != _FLUID)
    reach *= np.where(tissue == _WHITE, 1, 0.8)
    reach /= 1 + np.exp(-(np.sign(centre[0]) * axes[0] + 0.04) / 0.06)
    tissue[matter & (distance < reach)] = _OEDEMA
    ball = distance + rough + fine
    core = brain & (ball < 1)
    rim = rng.uniform(0.68, 0.8) + 1.5 * rough - fine  # inner border of the rim
    tissue[core] = np.where(ball[core] < rim[core], _CORE, _ENHANCING)


def _tumour_centre(rng: np.random.Generator) -> tuple[float, float, float]:
    """Draw a point of one hemisphere's white matter, in units of half the extents."""
    side = rng.choice([-1.0, 1.0])
    x, y, z = rng.uniform((0.35, -0.45, -0.15), (0.5, 0.45, 0.4))
    return float(side * x), float(y), float(z)


def _render(
    means: Field, tissue: NDArray[np.uint8], brain: Mask, rng: np.random.Generator
) -> NDArray[np.int16]:
    """Image one modality: tissue means, partial volume, texture, bias, noise, gain."""
    image = ndimage.gaussian_filter(means[tissue], 0.7, truncate=2.5)
    shape = image.shape
    image *= 1 + 0.03 * _smooth_field(shape, 8, rng)
    image *= np.exp(0.06 * _smooth_field(shape, 140, rng))
    image += 14 * rng.standard_normal(shape, dtype=np.float32)
    image *= rng.uniform(0.7, 1.5)  # scanners have no common unit
    return np.where(brain, np.clip(np.rint(image), 1, 32767), 0).astype(np.int16)
