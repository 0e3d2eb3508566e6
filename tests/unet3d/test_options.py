"""Options of a training, from words and from the run that goes on."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unet3d.tiny import write_decathlon, write_folder, write_knees
from unet3d.__main__ import main
from unet3d.options import check_folder
from unet3d.runs import Configuration, Surroundings, write_configuration

Asked = Callable[..., argparse.Namespace]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return a function from words to the options that `train` gets."""

    def ask(*words: object) -> argparse.Namespace:
        seen = list[argparse.Namespace]()
        monkeypatch.setattr(
            "unet3d.__main__._train", lambda options, _: seen.append(options) or 0
        )
        assert main(["train", *map(str, words)]) == 0
        return seen[0]

    return ask


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    settings = Configuration(
        data=str(tmp_path / "data"),
        label_scheme="msd",
        size=32,
        epochs=7,
        varied=False,
        budget=2**30,
    )
    around = Surroundings(cache=str(tmp_path / "cache"), workers=2)
    write_configuration(tmp_path / "run", settings, around=around)
    return tmp_path / "run"


def configured(run: Path) -> Configuration:
    from unet3d.runs import read_configuration

    return read_configuration(run)


@pytest.mark.parametrize("words", [("--resume",), ("--resume", "--output")])
def test_a_run_goes_on_as_it_was_called(
    asked: Asked, run: Path, words: tuple[str, ...]
) -> None:
    options = asked(*words, run)
    assert options.configuration == configured(run)
    assert (options.output, options.workers) == (run, 2)
    assert options.cache == run.parent / "cache"


def test_what_decides_no_number_may_change(asked: Asked, run: Path) -> None:
    (moved := run.parent / "moved").mkdir()
    options = asked(
        *("--resume", run, "--epochs", 9, "--data", moved, "--no-lms"),
        *("--workers", 1, "--cache", run.parent / "other"),
    )
    expected = replace(
        configured(run), epochs=9, data=str(moved), lms=False, budget=None
    )
    assert options.configuration == expected
    assert (options.workers, options.cache) == (1, run.parent / "other")


def brats(data: Path) -> tuple[str, ...]:
    write_folder(data / "a")
    return ("--label-scheme", "brats2017")


def decathlon(data: Path) -> tuple[str, ...]:
    write_decathlon(data)
    return ()


def nnunet(data: Path) -> tuple[str, ...]:
    data.mkdir(parents=True)
    text = (
        '{"channel_names": {"0": "T1", "1": "T2"}, "labels": {"bone": 1, "lesion": 2}}'
    )
    (data / "dataset.json").write_text(text)
    return ()


def scheme_file(data: Path) -> tuple[str, ...]:
    nnunet(data)
    (data / "dataset.json").rename(path := data / "mine.json")
    return ("--label-scheme", str(path))


@pytest.mark.parametrize("kind", [brats, decathlon, nnunet, scheme_file])
def test_a_run_of_each_kind_of_data_goes_on(
    asked: Asked, tmp_path: Path, kind: Callable[[Path], tuple[str, ...]]
) -> None:
    words, run = kind(tmp_path / "data"), tmp_path / "run"
    options = asked("--data", tmp_path / "data", "--output", run, *words)
    write_configuration(run, options.configuration)
    named = [("--resume", run), ("--output", run, "--resume")]
    for again in (*named, ("--resume", run, *words)):
        gone_on = asked(*again)
        assert gone_on.configuration == options.configuration


def test_labels_that_exclude_each_other_have_linear_heads(
    asked: Asked, tmp_path: Path
) -> None:
    for kind, linear in ((nnunet, True), (brats, False), (decathlon, False)):
        data = tmp_path / kind.__name__
        words = kind(data)
        options = asked("--data", data, "--output", tmp_path / "run", *words)
        found = options.configuration
        assert (found.softmax, found.linear_heads) == (linear, linear)
        assert found.background == linear


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--size", 48), "`size` must be that of the run in '{run}', 32, got 48."),
        (("--augment",), "`varied` must be that of the run in '{run}', False, got Tr"),
        (("--label-scheme", "brats2017"), "'msd', got 'brats2017'. Leave it out, or"),
        (("--output", "x"), "`--resume` must name the run that --output names, got '"),
    ],
)
def test_what_contradicts_the_run_is_refused_with_both_values(
    run: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], rule: str
) -> None:
    assert main(["train", "--resume", str(run), *map(str, words)]) == 2
    assert rule.format(run=run) in capsys.readouterr().err


def test_data_that_moved_is_asked_for(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.parent / "data").rmdir()
    assert main(["train", "--resume", str(run)]) == 2
    assert "which is not there. If it moved, add --data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--resume", "nowhere"), "`run` must be the folder of a training, got 'now"),
        (("--resume",), "`--resume` must name a run, got none."),
        ((), "`--data` must be given where a training begins, got none. Add it, or go"),
        (("--data", "d"), "`--label-scheme` must be given where a training begins"),
        (("--data", "d", "--label-scheme", "msd"), "`--output` must be given where"),
    ],
)
def test_what_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], rule: str
) -> None:
    assert main(["train", *words]) == 2
    assert rule in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--filters", "--depth"])
@pytest.mark.parametrize("model", ["residual-encoder-m", "networks:build"])
@pytest.mark.parametrize(
    "command", [("train", "--output", "r"), ("plan", "--card", "t4")]
)
def test_the_unet_s_options_are_refused_with_another_network(
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    model: str,
    option: str,
) -> None:
    assert main([*command, "--data", "d", "--model", model, option, "4"]) == 2
    rule = f"`{option}` must come without --model, as only the U-Net has it, got 4 with"
    assert f"{rule} {model}. Leave out {option} or" in capsys.readouterr().err


def test_a_preset_has_no_size_and_no_heads_of_the_unet_s(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knees = write_knees(tmp_path / "data", 2)
    words = ("--data", str(knees), "--model", "residual-encoder-m")
    assert main(["train", *words, "--output", str(tmp_path / "r"), "--size", "96"]) == 2
    assert "`--size` must come without a preset" in capsys.readouterr().err
    settled = asked(*words, "--output", tmp_path / "run").configuration
    assert settled.softmax
    assert not settled.linear_heads


def test_patches_have_no_size(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", write_decathlon(tmp_path), "--patch", 16, "--spacing", "keep")
    assert main(["train", *map(str, words), "--size", "96"]) == 2
    rule = "`--size` must come without --patch, as patches are not resized, got 96 with"
    assert rule in capsys.readouterr().err
    options = asked(*words, "--output", tmp_path / "run")
    write_configuration(tmp_path / "run", options.configuration)
    kept = json.loads((tmp_path / "run" / "configuration.json").read_text())
    assert "size" not in kept["configuration"]
    assert configured(tmp_path / "run") == options.configuration


def test_a_job_of_many_decides_how_many_train(
    asked: Asked, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "unet3d.__main__.read_placement", lambda: argparse.Namespace(size=4)
    )
    assert asked("--resume", run).workers == 1


def test_a_folder_that_cannot_be_made_is_refused_before_it_is_needed(
    tmp_path: Path,
) -> None:
    check_folder(tmp_path / "new" / "run", "output")
    check_folder(tmp_path, "output")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"`output` must be a folder, got '.*' is"):
        check_folder(tmp_path / "file" / "run", "output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match="`cache` must be a folder that this user may"):
        check_folder(tmp_path / "run", "cache")
