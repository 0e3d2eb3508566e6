"""What the numbers in a segmentation mean: one scheme per family of data sets.

The same number means different tissue in different years, so a scheme is chosen, never
guessed from the values that happen to occur.

Sources: Menze et al., IEEE TMI 34(10), 2015, for the three regions; the data
descriptions of BraTS 2017 to 2021, BraTS 2023 (glioma), and the Medical Segmentation
Decathlon's Task01 (Antonelli et al., arXiv 2106.05735) for the values.
"""

from dataclasses import dataclass

__all__ = ["BRATS2017", "REGIONS", "SCHEMES", "LabelScheme", "scheme_named"]

REGIONS: tuple[str, ...] = ("whole tumour", "tumour core", "enhancing tumour")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScheme:
    """The label values of one family of data sets; 0 is healthy in all of them.

    Args:
        name: What a command line and a run call it.
        core: Necrotic and non-enhancing tumour core.
        oedema: Oedema around the core.
        enhancing: Enhancing tumour.

    Example:
        >>> SCHEMES["msd"].regions["tumour core"]
        (2, 3)
    """

    name: str
    core: int
    oedema: int
    enhancing: int

    @property
    def values(self) -> tuple[int, ...]:
        """Every value a segmentation may hold, in ascending order."""
        return (0, *sorted((self.core, self.oedema, self.enhancing)))

    @property
    def regions(self) -> dict[str, tuple[int, ...]]:
        """The values of each region, in the order of `REGIONS`; each holds the next."""
        whole = (self.core, self.oedema, self.enhancing)
        core = (self.core, self.enhancing)
        return dict(zip(REGIONS, (whole, core, (self.enhancing,)), strict=True))


BRATS2017 = LabelScheme(name="brats2017", core=1, oedema=2, enhancing=4)

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        BRATS2017,
        LabelScheme(name="brats2023", core=1, oedema=2, enhancing=3),
        LabelScheme(name="msd", core=2, oedema=1, enhancing=3),
    )
}


def scheme_named(name: str) -> LabelScheme:
    """Find a scheme.

    Raises:
        ValueError: If there is none of that name.

    Example:
        >>> scheme_named("brats2024")
        Traceback (most recent call last):
        ...
        ValueError: `label scheme` must be one of brats2017, brats2023, msd, got \
'brats2024'. Choose the one that the data's description gives.
    """
    if name not in SCHEMES:
        raise ValueError(
            f"`label scheme` must be one of {', '.join(SCHEMES)}, got '{name}'. "
            "Choose the one that the data's description gives."
        )
    return SCHEMES[name]
