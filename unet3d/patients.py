"""The patient that a subject is a scan of, by its name.

    Brats17_TCIA_101_1     BraTS 2017 to 2019: year, hospital and patient, scan
    BraTS20_Training_001   BraTS 2020 and 2021: one name for each patient
    BraTS2021_00001
    BraTS-GLI-00001-000    BraTS 2023 and 2024: challenge, patient, time point

Sources: the data descriptions of these years.

Known weakness: a name that hides its patient, as the Decathlon's do, is taken for a
patient of its own.
"""

import re
from collections.abc import Iterable

__all__ = ["NO_GROUPS", "by_patient", "check_rule", "patient_of"]

# The rule by which each scan is a patient of its own.
NO_GROUPS = "none"

_KNOWN = (
    # The year is left out: hospitals' names for patients outlived it.
    re.compile(r"brats1[789]_(.+)_\d+", re.IGNORECASE),
    re.compile(r"(brats(?:-[a-z]+)+-\d+)-\d+", re.IGNORECASE),
)


def patient_of(name: str, rule: str | None = None) -> str:
    """The patient of a scan.

    Args:
        name: The subject's.
        rule: A regular expression that is searched for in the name: its first group is
            the patient, or all that it matches. `NO_GROUPS` takes the name itself, and
            None knows the names of BraTS and takes others themselves.

    Raises:
        ValueError: If the expression is none, or finds nothing.

    Example:
        >>> [patient_of(name) for name in ("BraTS-GLI-00001-101", "Brats18_2013_0_1")]
        ['BraTS-GLI-00001', '2013_0']
        >>> patient_of("sub-07_ses-02", "sub-[0-9]+")
        'sub-07'
    """
    if rule == NO_GROUPS:
        return name
    if rule is None:
        matches = (pattern.fullmatch(name) for pattern in _KNOWN)
        return next((match[1] for match in matches if match), name)
    check_rule(rule)
    match = re.search(rule, name)
    patient = match and match[match.re.groups and 1]
    if not patient:
        raise ValueError(
            f"`group by` must find a patient in every subject's name, got '{rule}', "
            f"which finds none in {name}. Try it with Python's re.search, or 'none'."
        )
    return patient


def check_rule(rule: str | None) -> None:
    """Refuse what is no regular expression.

    Raises:
        ValueError: If it is none.
    """
    try:
        re.compile(rule or "")
    except re.error as error:
        raise ValueError(
            f"`group by` must be a regular expression or '{NO_GROUPS}', got '{rule}' "
            f"({error}). Quote it for the shell, such as 'sub-[0-9]+'."
        ) from error


def by_patient(
    names: Iterable[str], rule: str | None = None
) -> dict[str, tuple[str, ...]]:
    """The scans of each patient, both in the order of names.

    Example:
        >>> by_patient(["b_2", "a_1", "b_1"], "[a-z]")
        {'a': ('a_1',), 'b': ('b_1', 'b_2')}
    """
    scans: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        patient = patient_of(name, rule)
        scans[patient] = (*scans.get(patient, ()), name)
    return scans
