"""The data's own file decides the scheme; contradictions are reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unet3d.tiny import save, volumes, write_decathlon
from unet3d.data import to_labels
from unet3d.reading import read_subject
from unet3d.schemes import SCHEMES, LabelScheme, choose_scheme, scheme_named
from unet3d.subjects import find_subjects

SPLEEN = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "spleen": 1}}
LIVER = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "liver"}}
KIDNEY = {"kidney": [1, 2], "tumour": 2, "background": 0}
TISSUES = {"background": 0, "edema": 1, "NCR": 2, "enhancing tumor": 3}
FOUR = {"0": "FLAIR", "1": "T1", "2": "T1ce", "3": "T2"}
WORDS = {"necrotic tumor core": 1, "peritumoral edema": 2, "GD-enhancing tumor": 4}
BRAIN: dict[str, Any] = {"channel_names": FOUR, "labels": TISSUES}
NESTED = {"whole tumor": [1, 2, 3], "tumor core": [2, 3], "enhancing tumor": [3]}


def written(folder: Path, content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8-sig")
    return folder


def own(folder: Path, content: Any) -> LabelScheme:
    scheme = choose_scheme(None, written(folder, content))
    assert scheme is not None
    return scheme


@pytest.mark.parametrize(
    ("content", "channels", "regions"),
    [
        (SPLEEN, ("ct",), {"spleen": (1,)}),
        (LIVER, ("ct",), {"liver": (1,)}),
        (SPLEEN | {"labels": KIDNEY}, ("ct",), {"kidney": (1, 2), "tumour": (2,)}),
        (BRAIN, ("flair", "t1", "t1ce", "t2"), SCHEMES["msd"].regions),
        (SPLEEN | {"labels": WORDS}, ("ct",), SCHEMES["brats2017"].regions),
    ],
)
def test_the_data_s_own_file_gives_channels_and_regions(
    tmp_path: Path, content: Any, channels: tuple[str, ...], regions: Any
) -> None:
    scheme = own(tmp_path, content)
    assert (scheme.channels, scheme.regions) == (channels, regions)


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (BRAIN, "brats2023", r"names 1 'oedema'.*Use msd, or leave"),
        ({"channel_names": FOUR, "labels": NESTED}, "brats2023", r"names 2 and 3"),
        (SPLEEN, "msd", r"has the channels ct: msd wants flair"),
        ({"channel_names": FOUR, "labels": {"lesion": 1}}, "msd", r"'lesion', unknown"),
    ],
)
def test_a_scheme_that_contradicts_the_data_is_refused(
    tmp_path: Path, content: Any, name: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        choose_scheme(name, written(tmp_path, content))


def test_the_decathlon_s_own_labels_are_msd_s(tmp_path: Path) -> None:
    write_decathlon(tmp_path)
    assert choose_scheme("msd", tmp_path) == SCHEMES["msd"]
    with pytest.raises(ValueError, match="brats2017 takes 2 for it"):
        choose_scheme("brats2017", tmp_path)


@pytest.mark.parametrize(
    "labels",
    [
        *({"a": 1, "b": 1}, {"a": 300}, {"a": "one"}, {}, {"a": 1, "ignore": 2}),
        {"a": [1, 4], "b": [1, 2]},  # neither apart nor one in the other
    ],
)
def test_labels_that_cannot_be_written_are_refused(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(ValueError, match="must give"):
        own(tmp_path, SPLEEN | {"labels": labels})


def test_nnu_net_s_order_decides_what_overlapping_regions_write(tmp_path: Path) -> None:
    crossing = {"background": 0, "left": [1, 3], "right": [2, 3]}
    content = SPLEEN | {"labels": crossing, "regions_class_order": [1, 2]}
    scheme = own(tmp_path, content)
    assert (scheme.written, scheme.competes, scheme.is_exclusive) == (
        (1, 2),
        True,
        False,
    )
    found = np.array([[0.9, 0.1], [0.9, 0.6], [0.4, 0.6], [0.4, 0.4]])
    assert to_labels(found, scheme).tolist() == [1, 2, 2, 0]
    for order in ([1], [1, 1], [2, 1], [3, 3]):
        with pytest.raises(
            ValueError, match=r"`regions_class_order` of dataset\.json mu"
        ):
            own(tmp_path, content | {"regions_class_order": order})


def test_labels_that_exclude_each_other_are_known() -> None:
    assert not any(s.is_exclusive for s in SCHEMES.values())
    competing = [name for name, scheme in SCHEMES.items() if scheme.competes]
    assert competing == ["brats2024"]  # the cavity lies in no tumour
    apart: Any = {"bone": (1,), "lesion": (3, 4)}
    assert LabelScheme(name="x", regions=apart, tissues=apart).is_exclusive
    one: Any = {"spleen": (1,)}  # a sigmoid is a softmax of two
    assert not LabelScheme(name="x", regions=one, tissues=one).is_exclusive


def test_a_file_can_be_a_scheme(tmp_path: Path) -> None:
    path = written(tmp_path, SPLEEN | {"labels": KIDNEY}) / "dataset.json"
    assert scheme_named(str(path)).values == (0, 1, 2)


@pytest.mark.parametrize("listed", [True, False])
def test_nnu_net_s_files_are_read_with_or_without_a_list(
    tmp_path: Path, *, listed: bool
) -> None:
    images, labels = volumes()[:4], volumes((1, 2, 3))[4]
    for name in ("case_1", "case_2"):
        for k, image in enumerate(images):
            save(tmp_path / "imagesTr" / f"{name}_{k:04d}.nii.gz", image)
        save(tmp_path / "labelsTr" / f"{name}.nii.gz", labels)
    save(tmp_path / "imagesTs" / "case_3_0000.nii.gz", images[0])
    content = BRAIN | {"file_ending": ".nii.gz"}
    if not listed:  # and written by hand
        content |= {"channel_names": [*FOUR.values()], "file_ending": "nii"}
        (tmp_path / "imagesTr").rename(tmp_path / "imagestr")
    else:  # MONAI lists each channel
        monai = [f"imagesTr/case_2_{k:04d}.nii.gz" for k in range(4)]
        pairs = zip(
            ("case_1", "case_2"), ("imagesTr/case_1.nii.gz", monai), strict=True
        )
        content["training"] = [
            {"image": image, "label": f"labelsTr/{name}.nii.gz"}
            for name, image in pairs
        ]
    scheme = own(tmp_path, content)
    found = find_subjects(tmp_path, scheme.channels)
    assert [files.name for files in found.subjects] == ["case_1", "case_2"]
    assert [problem.name for problem in found.problems] == ["case_3"][listed:]
    subject = read_subject(found.subjects[0], scheme)
    np.testing.assert_array_equal(subject.images[..., 2], images[2].T)
    with pytest.raises(ValueError, match=r"got the ending \.mha. Convert them"):
        find_subjects(written(tmp_path, content | {"file_ending": ".mha"}))
