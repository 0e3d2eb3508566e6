"""Memory and time of a training are predicted before there is one."""

from pathlib import Path

import pytest

from lms.machine.hardware import PRESETS
from lms.units import parse_size
from tests.unet3d.tiny import write_knees
from unet3d.__main__ import main
from unet3d.planning import NO_PLAN, card_named

pytestmark = pytest.mark.tf


def test_a_card_is_named_or_has_a_memory() -> None:
    assert card_named("rtx-3090").name.startswith("GeForce RTX 3090")
    assert card_named("RTX 3060").memory < 12 * 2**30
    assert card_named("12GiB,12.7TF,360GB/s,pcie4").flops == 12.7e12
    with pytest.raises(ValueError, match=r"one of .*, got 'gtx'.* memory, such as 12G"):
        card_named("gtx")


def test_memory_alone_takes_the_rates_of_the_card_of_nearest_memory() -> None:
    for text, name in (
        ("12GiB", "rtx-3060"),
        ("12G", "rtx-3060"),
        ("12884901888", "rtx-3060"),
        ("16GiB", "t4"),
        ("41GiB", "a100-pcie4"),
        ("1MiB", "rtx-4060-laptop"),
    ):
        found, near = card_named(text), PRESETS[name]
        assert found.name == f"{text} of memory, at the rates of {near.name}"
        assert (found.memory, found.flops) == (parse_size(text), near.flops)


@pytest.mark.slow
@pytest.mark.long
def test_the_largest_patch_that_fits_a_card_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_knees(tmp_path / "data", 3)
    monkeypatch.chdir(tmp_path)
    words = ["plan", "--data", str(data), "--depth", "2", "--filters", "2", "--card"]
    assert main([*words, "1GiB", "--patch", "4x8x8"]) == 0
    told = capsys.readouterr().out
    # Volumes of 8, 9 to 11, and 10 voxels, padded to even sides.
    assert "Largest patch of this network that fits: 8x10x10." in told
    assert "The scans' median size is the limit here, not the card." in told
    assert "an epoch of 2 steps" in told
    assert main([*words, "20KiB", "--patch", "8x8x8"]) == NO_PLAN
    assert "no plan fits" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
