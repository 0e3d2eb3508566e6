"""The cache: same answer, keyed by all that matters, never half written."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.unet3d.tiny import save, volumes, write_folder
from unet3d.cache import cache_entry, load_prepared, prepare_all, usable
from unet3d.data import prepare
from unet3d.reading import read_subject
from unet3d.schemes import BRATS2017, SCHEMES
from unet3d.subjects import SubjectFiles, files_in, find_subjects


@pytest.fixture
def files(tmp_path: Path) -> SubjectFiles:
    return files_in(write_folder(tmp_path / "data" / "a"))


def load(files: SubjectFiles, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    return load_prepared(files, size=8, scheme=BRATS2017, cache=cache)


def test_first_and_later_answers_are_what_preparing_gives(
    files: SubjectFiles, tmp_path: Path
) -> None:
    expected = prepare(read_subject(files, BRATS2017), 8)
    for _ in range(2):
        for found, wanted in zip(load(files, tmp_path / "c"), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_second_answer_does_not_read_the_volumes(
    files: SubjectFiles, tmp_path: Path
) -> None:
    before = load(files, tmp_path / "c")
    path = files.images[0].path
    state = path.stat()
    path.write_bytes(b"\0" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    np.testing.assert_array_equal(load(files, tmp_path / "c")[0], before[0])


def test_size_scheme_and_changed_files_make_new_entries(
    files: SubjectFiles, tmp_path: Path
) -> None:
    def entry(size: int = 8, scheme: str = "brats2017") -> str:
        return cache_entry(
            files, size=size, scheme=SCHEMES[scheme], cache=tmp_path
        ).name

    names = {entry(), entry(size=16), entry(scheme="brats2023"), entry(scheme="msd")}
    save(files.images[1].path, volumes()[2])
    names.add(entry())
    assert len(names) == 5


def test_a_damaged_entry_is_made_again(files: SubjectFiles, tmp_path: Path) -> None:
    before = load(files, tmp_path / "c")
    (entry,) = (tmp_path / "c").iterdir()
    entry.write_bytes(entry.read_bytes()[:100])
    np.testing.assert_array_equal(load(files, tmp_path / "c")[0], before[0])


def test_a_fault_that_many_share_is_one_paragraph_with_their_names(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    for number in range(30):
        folder = write_folder(data / f"s{number:02d}", values=(1, 2, 3))
        if number < 7:
            (folder / f"{folder.name}_t2.nii.gz").unlink()
    found = find_subjects(data)
    with pytest.raises(FileNotFoundError) as caught:
        usable(found, skip_bad=False)
    (only,) = str(caught.value).splitlines()
    assert only.startswith("7 subjects are bad, s00, s01, s02, s03, s04 and 2 more; ")
    assert only.endswith("Or leave bad subjects out with --skip-bad.")
    with pytest.raises(ValueError, match="3 subjects not read yet") as caught:
        prepare_all(
            found.subjects, size=8, scheme=BRATS2017, cache=data, skip_bad=False
        )
    said = str(caught.value)
    assert said.count("must hold the labels") == 1
    assert "20 subjects are bad, s07, s08, s09, s10, s11 and 15 more" in said
