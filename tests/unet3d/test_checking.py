"""`unet3d check`: every bad subject with every reason, and what to beware of."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unet3d.tiny import LPS, SHAPE, save, volumes, write_decathlon, write_folder
from unet3d.__main__ import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four sound subjects with different voxels."""
    for number, name in enumerate("abcd", start=1):
        folder = write_folder(tmp_path / "data" / name)
        save(folder / f"{name}_t2.nii.gz", volumes()[3] * np.int16(number))
    return tmp_path / "data"


def check(data: Path, *words: str, scheme: str | None = "brats2017") -> int:
    chosen = ["--label-scheme", scheme] if scheme else []
    return main(["check", "--data", str(data), *chosen, *words])


NOISE = np.arange(1, 121, dtype=np.int16).reshape(SHAPE)


def found(data: Path, *words: str, **options: Any) -> tuple[int, dict[str, Any]]:
    path = data.parent / "checked.json"
    code = check(data, "--json", str(path), *words, **options)
    return code, json.loads(path.read_text())


def test_sound_data_gives_0_and_a_table(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = found(data)
    assert (code, said["sound"], said["warnings"], said["reasons"]) == (0, True, [], [])
    assert [s["name"] for s in said["subjects"]] == list("abcd")
    assert said["subjects"][0]["labels"] == [0, 1, 2, 4]
    shown = capsys.readouterr()
    assert "6 x 5 x 4: 4" in shown.out
    assert "Checked 4 of 4" in shown.err


def test_every_bad_subject_is_listed_with_all_its_reasons(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "b" / "b_t1.nii.gz").unlink()
    (data / "b" / "b_t1ce.nii.gz").unlink()
    (data / "b" / "b_seg.nii.gz").unlink()
    (data / "b" / "b_t2.nii.gz").write_bytes(b"scribble")
    save(data / "d" / "d_t1.nii.gz", volumes()[1], LPS * 3)
    save(data / "d" / "d_seg.nii.gz", np.full(SHAPE, 7, np.uint8))
    (data / "e").mkdir()
    code, said = found(data)
    assert code == 1
    reasons = {s["name"]: s["reasons"] for s in said["subjects"] if s["reasons"]}
    counts = {name: len(texts) for name, texts in reasons.items()}
    assert counts == {"b": 3, "d": 2, "e": 1}
    assert "without its modalities 't1', 't1ce'. Add" in reasons["b"][0]
    shown = capsys.readouterr().out
    for text in (*reasons["b"], *reasons["d"]):
        assert text in shown


def test_what_would_train_all_the_same_is_warned_of(data: Path) -> None:
    save(data / "a" / "a_seg.nii.gz", np.zeros(SHAPE, np.uint8))
    outside = volumes()[4][::-1].copy()
    outside[0, 0, 0] = 1
    save(data / "b" / "b_seg.nii.gz", outside)
    save(data / "b" / "b_t1.nii.gz", volumes()[0])
    for path in (data / "c").iterdir():
        voxels = volumes()[4] if "seg" in path.name else volumes()[0] * 3 + NOISE
        save(path, voxels, np.diag([-2.0, -2.0, 1.0, 1.0]))
    (data / "e").mkdir()
    for path in (data / "d").iterdir():
        (data / "e" / path.name.replace("d_", "e_")).symlink_to(path)
    code, said = found(data)
    assert (code, said["sound"]) == (0, True)
    warnings = {s["name"]: s["warnings"] for s in said["subjects"]}
    assert warnings["a"] == ["the segmentation is empty"]
    assert warnings["b"] == [
        "flair and t1 hold the same voxels",
        "25% of the labelled voxels lie where images are 0",
    ]
    assert "no voxel is 0 in every modality: is the skull stripped?" in warnings["c"]
    spacings, twice = said["warnings"]
    assert spacings.endswith(": 1 x 1 x 1 mm in a, b, d, e; 2 x 2 x 1 mm in c")
    assert twice == "several subjects have the same images: d, e"


def test_a_mask_in_place_of_a_modality_is_warned_of(data: Path) -> None:
    save(data / "a" / "a_t1.nii.gz", 300 * (volumes()[0] > 0).astype(np.int16))
    save(data / "b" / "b_t2.nii.gz", np.where(volumes()[0], 5, -1024).astype("i2"))
    save(data / "c" / "c_t1ce.nii.gz", volumes()[4])
    code, said = found(data)
    assert code == 0
    warnings = {s["name"]: s["warnings"] for s in said["subjects"]}
    assert warnings["a"] == ["t1 holds one value where it is not 0: is it a mask?"]
    assert warnings["b"] == ["t2 holds one value where it is not 0: is it a mask?"]
    assert warnings["c"] == ["t1ce and the segmentation hold the same voxels"]
    assert warnings["d"] == []


def test_what_a_header_and_a_volume_leave_in_doubt_is_warned_of(data: Path) -> None:
    path = data / "a" / "a_t1.nii.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<3f", content, 80, 2, 2, 2)  # pixdim
    content[123] = 3  # xyzt_units
    path.write_bytes(gzip.compress(bytes(content)))
    save(data / "b" / "b_t1.nii", volumes()[2])
    save(data / "b" / "b_brain_t1.nii.gz", volumes()[2])
    for path in (data / "c").iterdir():
        voxels = np.pad(volumes()[4 if "seg" in path.name else 0], ((0, 9),) * 3)
        voxels[-1, -1, -1] = "seg" not in path.name
        save(path, voxels)
    for path in (data / "d").iterdir():
        save(path, volumes()[4] if "seg" in path.name else volumes()[0][:, :, 1:2])
    code, said = found(data)
    assert code == 1  # the labels of d are thicker than its images
    warnings = {s["name"]: s["warnings"] for s in said["subjects"]}
    units, spacings = warnings["a"]
    assert units == "the header's spacing is in micrometres, but is taken for mm"
    doubt = "pixdim (2.0, 2.0, 2.0) and sform (1.0, 1.0, 1.0): sform is taken"
    assert doubt in spacings
    packed, other = warnings["b"]
    assert packed == "b_t1.nii.gz is read, b_t1.nii beside it is not"
    assert other == "b_brain_t1.nii.gz is not read, another file of its kind is"
    assert warnings["c"][-1].startswith("only 1% of the box around the brain is not 0")
    assert warnings["d"][-1] == "the brain, all voxels but 0, is one voxel thick"


def test_several_scans_of_a_patient_are_named(data: Path) -> None:
    for name in "ab":
        renamed = data / f"BraTS-GLI-00007-10{name == 'b':d}"
        for path in (data / name).iterdir():
            path.rename(path.with_name(renamed.name + path.name[1:]))
        (data / name).rename(renamed)
    code, said = found(data)
    assert code == 0
    assert len(said["patients"]["BraTS-GLI-00007"]) == 2
    (warning,) = said["warnings"]
    assert warning.startswith("1 of 3 patients have several scans")
    assert warning.endswith("BraTS-GLI-00007")
    assert found(data, "--group-by", "none")[1]["warnings"] == []


def test_names_that_may_be_scans_of_one_patient_are_warned_of(data: Path) -> None:
    for old, new in zip("abcd", ("P1_1", "P1_2", "P2_1", "P3_1"), strict=True):
        for path in (data / old).iterdir():
            path.rename(path.with_name(new + path.name[1:]))
        (data / old).rename(data / new)
    code, said = found(data)
    assert code == 0
    (warning,) = said["warnings"]
    assert warning.startswith("names that differ in their last number alone are taken")
    assert ": P1_1, P1_2. Say by --group-by" in warning
    code, said = found(data, "--group-by", "^[^0-9]*[0-9]+")
    assert len(said["patients"]["P1"]) == 2


def test_without_a_scheme_labels_are_told_not_judged(data: Path) -> None:
    code, said = found(data, scheme=None)
    assert code == 0
    (warning,) = said["warnings"]
    allowed = "the values 0, 1, 2, 4 are allowed by brats2017 and brats2024"
    assert warning.endswith(allowed)
    save(data / "a" / "a_seg.nii.gz", np.full(SHAPE, 0.5, np.float32))
    code, said = found(data, scheme=None)
    assert code == 1
    assert "whole numbers from 0 to 255, got 0.5" in said["subjects"][0]["reasons"][0]


def test_the_decathlon_s_test_images_need_no_segmentation(tmp_path: Path) -> None:
    write_decathlon(tmp_path / "data", ("BRATS_001", "BRATS_002"))
    code, said = found(tmp_path / "data", scheme="msd")
    assert code == 0
    assert [s["labels"] for s in said["subjects"]] == [[0, 1, 2, 3]] * 2 + [None]


def test_no_data_and_no_file_to_write_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path / "nowhere") == 2
    assert check(data, "--json", str(tmp_path)) == 2
    assert "`json` must be a file, got" in capsys.readouterr().err
    assert check(data, "--group-by", "(") == 2
    assert "`group by` must be a regular expression" in capsys.readouterr().err
