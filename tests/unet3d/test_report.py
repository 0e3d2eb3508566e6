"""From predicted files to tables and figures, on subjects of a few voxels."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.unet3d.tiny import save, volumes, write_folder
from unet3d.__main__ import main
from unet3d.data import brain_box, resize_labels
from unet3d.evaluation import Score, compare, summarise
from unet3d.figures import Slice, draw_boxes, draw_losses
from unet3d.files import write_arrays
from unet3d.reading import read_subject
from unet3d.schemes import REGIONS
from unet3d.scores import FARTHEST


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in "abc":
        write_folder(tmp_path / "data" / name)
    return tmp_path / "data"


def predict(folder: Path, name: str, labels: np.ndarray) -> None:
    save(folder / f"{name}.nii.gz", labels.astype(np.uint8))


def fill(folder: Path, missing: int) -> Path:
    """The truth of each subject, without one of its three labels."""
    for name in "abc":
        labels = volumes()[4].copy()
        labels[labels == missing] = 0
        predict(folder, name, labels)
    return folder


def evaluate(data: Path, folders: list[Path], output: Path, *words: str) -> int:
    command = ["evaluate", "--truth", str(data), "--label-scheme", "brats2017"]
    command += ["--predictions", *map(str, folders), "--output", str(output)]
    return main([*command, *words])


def rows(report: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((report / "scores.csv").read_text().splitlines()))


def test_tables_and_figures_of_two_sets(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [fill(tmp_path / "all", 9), fill(tmp_path / "no_rim", 4)]
    assert evaluate(data, folders, tmp_path / "report", "--names", "A", "B") == 0
    found = rows(tmp_path / "report")
    table = {(r["set"], r["subject"], r["region"]): r for r in found}
    assert len(table) == 2 * 3 * 3
    assert {float(table["A", s, r]["dice"]) for s in "abc" for r in REGIONS} == {1}
    # B misses one voxel of three, one of two, and all of one.
    expected = [2 * 2 / 5, 2 * 1 / 3, 0]
    dices = [float(table["B", "a", region]["dice"]) for region in REGIONS]
    assert dices == pytest.approx(expected)
    assert float(table["B", "a", "enhancing tumour"]["hd95"]) == FARTHEST
    shown = capsys.readouterr().out
    assert "BraTS's rule" in shown
    assert "Holm" in shown
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["empty rule"] == "brats"
    missed = {(s["set"], s["region"]): s["missed"] for s in report["summaries"]}
    assert missed["B", "enhancing tumour"] == 3
    assert missed["A", "enhancing tumour"] == missed["B", "whole tumour"] == 0
    assert len(report["tests"]["dice"]) == 3
    for name in ("dice.png", "hd95.png", "lesion_dice.png", "gallery.png"):
        assert (tmp_path / "report" / name).stat().st_size > 10_000


def test_without_a_number_there_is_null_and_the_rule_is_named(
    data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "report"
    fill(tmp_path / "p", 4)
    assert evaluate(data, [tmp_path / "p"], output, "--empty-rule", "nan") == 0
    report = json.loads((output / "report.json").read_text())
    (lost, *_) = [s for s in report["scores"] if s["region"] == "enhancing tumour"]
    assert (lost["dice"], lost["hd95"]) == (0, None)
    assert "no score" in report["empty rule in words"]


def test_folders_of_one_name_are_averaged(data: Path, tmp_path: Path) -> None:
    folders = [fill(tmp_path / "all", 9), fill(tmp_path / "no_rim", 4)]
    assert evaluate(data, folders, tmp_path / "report", "--names", "A", "A") == 0
    whole = [r for r in rows(tmp_path / "report") if r["region"] == "whole tumour"]
    assert [float(r["dice"]) for r in whole] == pytest.approx([0.9] * 3)


def test_cubes_are_resized_once_to_the_cropped_truth(
    data: Path, tmp_path: Path
) -> None:
    folder = fill(tmp_path / "p", 9)
    for name in "abc":
        subject = read_subject(data / name)
        cube = resize_labels(subject.labels[brain_box(subject.images)], 8)
        write_arrays(folder / "cubes" / f"{name}.npz", {"labels": cube})
    assert evaluate(data, [folder], tmp_path / "report", "--size", "8") == 0
    assert {float(row["dice"]) for row in rows(tmp_path / "report")} == {1}


def test_what_cannot_be_scored_is_named_or_left_out_aloud(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "p", 9)
    predict(folder, "b", np.zeros((3, 3, 3)))
    assert evaluate(data, [folder], tmp_path / "report") == 2
    assert "subject b" in capsys.readouterr().err
    assert evaluate(data, [folder], tmp_path / "report", "--skip-bad") == 0
    assert "Left out b: prediction of subject b" in capsys.readouterr().err
    assert {row["subject"] for row in rows(tmp_path / "report")} == {"a", "c"}


def say(folder: Path, names: str) -> None:
    """Write the file by which `predict` lists its segmented subjects."""
    said = {"label scheme": "brats2017", "run": "gone", "subjects": list(names)}
    (folder / "predictions.json").write_text(json.dumps(said))


def test_missing_predictions_are_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "p", 9)
    (folder / "a.nii.gz").unlink()
    (folder / "c.nii.gz").unlink()
    report = tmp_path / "report"
    assert evaluate(data, [folder], report) == 2
    said = f"got '{folder}' without a, c. It holds b. Predict them"
    assert said in capsys.readouterr().err
    assert evaluate(data, [folder], report, "--skip-bad") == 0
    assert "Left out a, c: " in capsys.readouterr().err
    say(folder, "ab")
    assert evaluate(data, [folder], report) == 2
    assert f"got '{folder}' without a. It holds b. Predict" in capsys.readouterr().err


def test_whom_nobody_was_asked_to_predict_is_told_and_no_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "p", 9)
    (folder / "c.nii.gz").unlink()
    say(folder, "ab")
    assert evaluate(data, [folder], tmp_path / "report") == 0
    assert "Not predicted, so not scored: c\n" in capsys.readouterr().err
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["not predicted"] == ["c"]


def test_an_unknown_origin_and_a_prediction_on_another_grid_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "p", 9)
    (folder / "predictions.json").write_text("{}")
    assert evaluate(data, [folder], tmp_path / "report") == 2
    assert "must say label scheme and run" in capsys.readouterr().err
    (folder / "predictions.json").unlink()
    save(folder / "b.nii.gz", volumes()[4], np.eye(4))
    assert evaluate(data, [folder], tmp_path / "report") == 2
    assert "prediction of subject b" in (shown := capsys.readouterr().err)
    assert "must lie on the truth's grid" in shown


def test_sets_of_other_subjects_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [fill(tmp_path / "one", 9), fill(tmp_path / "two", 9)]
    (folders[1] / "b.nii.gz").unlink()
    assert evaluate(data, folders, tmp_path / "report") == 2
    assert "got '" + str(folders[1]) + "' without b" in capsys.readouterr().err
    for folder, names in zip(folders, ("ab", "ac"), strict=True):
        say(folder, names)
    assert evaluate(data, folders, tmp_path / "report") == 2
    assert "must hold the same subjects" in capsys.readouterr().err
    assert evaluate(data, folders, tmp_path / "report", "--skip-bad") == 0
    assert {row["subject"] for row in rows(tmp_path / "report")} == {"a", "c"}
    (tmp_path / "none").mkdir()
    assert evaluate(data, [tmp_path / "none"], tmp_path / "report") == 2


def test_folds_of_one_name_are_pooled(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, report = fill(tmp_path / "whole", 9), tmp_path / "report"
    assert evaluate(data, [whole], report) == 0
    expected = [{**row, "set": "cv"} for row in rows(report)]
    folds = [fill(tmp_path / name, 9) for name in ("one", "two")]
    for folder, kept in zip(folds, ("ab", "c"), strict=True):
        for name in {*"abc"} - {*kept}:
            (folder / f"{name}.nii.gz").unlink()
    assert evaluate(data, folds, report, "--names", "cv", "cv") == 0
    assert rows(report) == expected
    (folds[1] / "c.nii.gz").rename(folds[1] / "b.nii.gz")  # repeats, and not the same
    assert evaluate(data, folds, report, "--names", "cv", "cv") == 2


def score(subject: str, name: str, value: float) -> Score:
    known: Any = {"set": name, "subject": subject, "region": REGIONS[0], "missed": 0}
    known |= {"dice": value, "lesion_dice": value}
    return Score(hd95=math.nan, lesion_hd95=math.nan, **known)


def test_summaries_have_the_quartiles_of_known_numbers() -> None:
    scores = [score(str(k), "A", value) for k, value in enumerate([0.1, 0.3, 0.2, 0.8])]
    scores.append(score("4", "A", math.nan))
    summary = next(s for s in summarise(scores) if s.measure == "dice")
    assert summary.subjects == 4
    assert summary.median == pytest.approx(0.25)
    assert summary.lower_quartile == pytest.approx(0.175)
    assert summary.upper_quartile == pytest.approx(0.425)


def test_a_comparison_pairs_subjects() -> None:
    scores = [score(str(k), "A", 0.1 * k) for k in range(6)]
    scores += [score(str(k), "B", 0.11 * k + 0.2) for k in range(6)]
    comparison = compare(scores)[0]
    assert (comparison.first, comparison.second) == ("A", "B")
    assert comparison.median_difference == pytest.approx(0.225)
    assert comparison.p == pytest.approx(2 / 64)


def test_a_missed_region_is_a_mark_and_not_the_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Figure]()
    monkeypatch.setattr("unet3d.figures.save", lambda figure, _: drawn.append(figure))
    values = {"liver": {"A": [2.0, 3.0], "B": [4.0, 1.0, 9.0]}}
    words: Any = {"title": "HD95", "label": "mm", "note": ""}
    draw_boxes(values, tmp_path / "x.png", missed={"liver": {"A": 1, "B": 0}}, **words)
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[1] < 12
    assert [text.get_text() for text in axes.texts] == ["1 of 3 missed"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["liver\n3 subjects"]


def test_subjects_whose_regions_are_all_missed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Figure]()
    monkeypatch.setattr("unet3d.figures.save", lambda figure, _: drawn.append(figure))
    words: Any = {"title": "HD95", "label": "mm", "note": "", "missed": {"x": {"A": 2}}}
    draw_boxes({"x": {"A": []}}, tmp_path / "x.png", **words)
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["x\n2 subjects"]
    assert [text.get_text() for text in axes.texts] == ["2 of 2 missed"]


def test_losses_above_1_are_drawn_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Figure]()
    monkeypatch.setattr("unet3d.figures.save", lambda figure, _: drawn.append(figure))
    both = {"dice_coefficient": 0.5, "val_dice_coefficient": 0.4}
    losses = [(1.4, 0.9), (math.inf, math.nan)]
    rows = [
        {"epoch": k, "loss": loss, "val_loss": validated} | both
        for k, (loss, validated) in enumerate(losses)
    ]
    draw_losses({"A": [rows]}, tmp_path / "x.png", note="")
    assert drawn[0].axes[0].get_ylim() == pytest.approx((0, 1.02 * 1.4))
    assert drawn[0].axes[1].get_ylim() == pytest.approx((0, 1.02))


def test_each_run_of_pooled_folds_has_its_losses(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Figure]()
    monkeypatch.setattr("unet3d.figures.save", lambda f, *_, **__: drawn.append(f))
    folders = [fill(tmp_path / "all", 9), fill(tmp_path / "no_rim", 4)]
    runs = [tmp_path / f"fold{k}" for k in range(3)]
    columns = [p + c for p in ("", "val_") for c in ("loss", "dice_coefficient")]
    for run in runs:
        run.mkdir()
        lines = [",".join(["epoch", *columns]), "0,0.5,0.5,0.5,0.5"]
        (run / "log.csv").write_text("\n".join(lines))
    for folder, own in zip(folders, (runs[:2], runs[2:]), strict=True):
        said = {"label scheme": "brats2017", "runs": [str(run) for run in own]}
        (folder / "predictions.json").write_text(json.dumps(said))
    assert evaluate(data, folders, tmp_path / "report", "--names", "A", "B") == 0
    (losses,) = [f for f in drawn if len(f.axes) == 2]
    colours = [str(line.get_color()) for line in losses.axes[0].lines]
    # A line for training and one for validation, of two folds and of one run.
    assert [colours.count(c) for c in dict.fromkeys(colours)] == [4, 2]


def test_the_gallery_shows_small_regions_and_names_the_worst(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Slice]()
    monkeypatch.setattr(
        "unet3d.report.draw_gallery", lambda s, *_, **__: seen.extend(s)
    )
    truth = np.zeros((6, 5, 4), np.uint8)
    truth[1:5, 1:4, 1], truth[1, 1, 2], truth[2, 1, 2] = 2, 1, 4  # few below many
    for name in "abc":
        save(data / name / f"{name}_seg.nii.gz", truth)
        predict(tmp_path / "p", name, truth * (name != "b"))
    assert evaluate(data, [tmp_path / "p"], tmp_path / "report") == 0
    assert [shown.name for shown in seen] == ["best: a", "c", "worst: b"]
    assert {*np.unique(seen[0].regions["truth"])} == {0, 2, 3}
