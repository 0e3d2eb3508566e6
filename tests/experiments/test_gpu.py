"""The checks of a real card, rehearsed on an emulated one; and what they conclude."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import runner
from experiments.__main__ import main
from experiments.gpu import answer
from experiments.runner import Book, Trial
from lms.emulation import emulate
from profiling.record import circumstances
from tests.programs import python

ROOT = Path(__file__).parents[2]
NET = {"size": 16, "filters": 4, "depth": 2}


def work(folder: Path, trial: Trial, slow: float) -> dict[str, Any]:
    """Results of one trial's process, on an emulated card in slow motion."""
    book = Book(path=folder / "gpu.jsonl", folder=folder)
    asked = replace(trial, memory=128 << 20, card="t4", slow_motion=slow)
    found = runner.measured(asked, book, f"{asked.probe}{asked.way}")
    assert found["error"] is None, found
    return found


@pytest.mark.tf
@pytest.mark.slow
def test_a_swap_in_starts_at_its_trigger_and_hides(tmp_path: Path) -> None:
    probe = Trial(probe="transports", knobs={"flops": 1e9, "runs": 1})
    found = work(tmp_path, probe, 1000)["transports"]
    kernel = found["copy ops"]["kernel_seconds"]
    assert found["copy ops"]["late_seconds"] < kernel / 2
    assert found["copy ops"]["hidden"] > 0.9


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_a_planned_step_has_plain_s_numbers_and_its_copies_overlap_kernels(
    tmp_path: Path,
) -> None:
    trial = Trial(model="unet", shape=NET, steps=4, traced=True)
    plain = work(tmp_path, trial, 30)
    budget = int(0.7 * plain["peak_bytes"])
    moved = {"budget": budget, "knobs": {"recompute": False}}
    lms = work(tmp_path, replace(trial, way="callback", **moved), 30)
    rows = [row("unet plain", **plain), row("unet lms", **lms)]
    claims = {text: holds for holds, text in answer(rows).verdicts}
    copied = [f"as many bytes are copied as planned, {way}" for way in ("h2d", "d2h")]
    peak = "the peak is at most the promise"
    for words in ("are plain Keras's bit for bit", peak, *copied):
        (found,) = (holds for text, holds in claims.items() if words in text)
        assert found, claims
    assert lms["report"]["swap_count"] > 0
    assert lms["lanes"]["h2d_hidden"] > 0


A_GPU = bool(list(Path("/dev").glob("nvidia[0-9]")))


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not A_GPU, reason="no GPU is here: nothing is proved on one")
def test_its_claims_hold_on_a_gpu(tmp_path: Path) -> None:
    words = ["run", "gpu", "--card", "real"]
    assert main([*words, "--results", str(tmp_path / "gpu.jsonl")]) == 0


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*words: Any) -> int:
        words[3].write("lms.errors.LMSError: TensorFlow sees no GPU.\n")
        return runner.NO_CARD

    monkeypatch.setattr(runner, "_ended", ended)
    results = tmp_path / "gpu.jsonl"
    words = ["run", "gpu", "--card", "real", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--results", str(results)])
    assert stopped.value.code == runner.NO_CARD
    assert "TensorFlow sees no GPU" in capsys.readouterr().err
    assert not results.exists()


def row(name: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "seconds": 1.0, "refused": None}
    return found | {"error": None, "report": None} | more


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ({"hidden": 1.0, "late_seconds": 0.0, "kernel_seconds": 1.0}, True),
        ({"hidden": 0.2, "late_seconds": 0.0, "kernel_seconds": 1.0}, False),
        ({"hidden": 1.0, "late_seconds": 2.0, "kernel_seconds": 1.0}, False),
        ({"hidden": 16.36, "late_seconds": 0.0, "kernel_seconds": 1.0}, None),
        ({"error": "the trace shows no copy"}, None),
    ],
)
def test_a_share_above_one_is_not_measured(found: dict[str, Any], holds: Any) -> None:
    (claim,) = answer([row("transports", transports={"copy ops": found})]).verdicts
    assert claim[0] is holds


def test_what_ended_badly_fails_but_not_what_was_skipped() -> None:
    rows = [row("a", error="crashed"), row("b", error="skipped: needs 'a'")]
    assert [holds for holds, _ in answer(rows).verdicts] == [False]


def test_importing_it_needs_no_package_that_a_gpu_machine_may_lack() -> None:
    names = ("matplotlib", "nibabel", "scipy", "pynvml", "tensorflow")
    code = f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
    code += "import experiments.__main__, profiling.record as r; r.circumstances()"
    assert python("-c", code, cwd=ROOT).returncode == 0


def test_without_a_checkout_the_commit_is_what_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LMS_COMMIT", "0123abc")
    assert circumstances()["commit"] == "0123abc"


@pytest.mark.tf
@pytest.mark.long
def test_a_run_goes_on_on_the_card_that_is_here(tmp_path: Path) -> None:
    results = tmp_path / "gpu.jsonl"
    words = ["run", "gpu", "--card", "real", "--trials", "unet plain"]
    words += ["--size", "16", "--filters", "8", "--depth", "2", "--steps", "6"]
    words += ["--results", str(results), "--folder", str(tmp_path), "--minutes", "4"]
    card = emulate.environment("128MiB", card="t4", slow_motion=1000)
    for _ in range(2):
        done = python("-m", "experiments", *words, env=card, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
    names = [row["name"] for row in runner.read_lines(results)[1]]
    assert names == ["machine", "unet plain"]
