"""`python -m lms plan`: what it says before training, and that training agrees."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lms.errors import PlanError
from lms.ir.graph import op_of
from lms.ir.plan import SwapPlan
from lms.machine.hardware import PRESETS
from lms.planning.settings import read_settings
from lms.units import MIB
from tests.programs import python
from tests.report.test_page import data_of
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

KINDS = ["batch", "weights", "optimizer's slots"]

SUBJECTS = Path(__file__).with_name("subjects.py")
TRIALS = "tests.commands.trials"


def test_a_card_is_planned_for_as_it_is(tmp_path: Path) -> None:
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    limits = ("--memory", "64MiB", "--h2d", "1GB", "--d2h", "1GB")
    written = ("--json", str(file), "--page", str(page))
    plan = (sys.executable, "-m", "lms", "plan", f"{SUBJECTS}:tiny", *written)
    ended = python("-m", "lms", "emulate", *limits, "--", *plan)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("LMS train step (")
    assert "nothing is swapped" in ended.stdout
    assert "GPU:0, 64.00 MiB: measured here" in ended.stdout
    found = json.loads(file.read_text())
    assert found["margin_bytes"] == 64 * MIB // 32
    assert found["budget_bytes"] == 64 * MIB - found["margin_bytes"]
    assert found["hardware"]["h2d"] == pytest.approx(1e9, rel=0.5)
    assert found["swap_count"] == 0
    (drawn,) = data_of(page.read_text())
    assert drawn["source"] == "measured"
    assert drawn["report"]["budget_bytes"] == found["budget_bytes"]
    assert {"dense", "adam"} <= {*drawn["layers"]}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.html", "plan.json"]


BAD = {
    "of_batch": "must take no argument, got of_batch(batch). Write",
    "nothing": "got NoneType from the function.",
    "absent": "got a file without a function `absent`.",
    "uncompiled": "got Sequential that is not compiled.",
    "failing": "got RuntimeError in line 71: no data here.",
    "eager": "`run_eagerly` must be False",
    "open_batch": "a batch must have known dimensions, got (None, 16).",
    "wrong_batch": "must accept its batch, got ",
    "words": "a batch must be made of arrays or tf.TensorSpec, got 'a'.",
    "broken": "got SyntaxError",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands below write, and a file that is no Python."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "broken.py").write_text("def broken(:\n")
    return folder


@pytest.fixture(scope="module")
def said(worker: Worker, folder: Path) -> dict[str, Any]:
    """Texts of commands where there is no card, all from one process."""
    there = ["--hardware", "v100-pcie", "--link", "gh200", "--budget", "8MiB"]
    there += ["--recompute", "never", "--json", str(folder / "roofline.json")]
    there += ["--page", str(folder / "roofline.html")]
    little = ["--hardware", "gh200", "--budget", "1MiB"]
    little += ["--json", str(folder / "refused.json")]
    little += ["--page", str(folder / "refused.html")]
    rule = ["--hardware", "v100-pcie", "--budget", "16MiB", "--planner", "threshold"]
    words = {"roofline": there, "refused": little}
    many = {name: ["plan", f"{SUBJECTS}:small", *more] for name, more in words.items()}
    many["rule"] = ["plan", f"{SUBJECTS}:resnet", *rule]
    state = ["--hardware", "v100-pcie", "--budget", "2560KiB"]
    state += ["--json", str(folder / "state.json")]
    many["state"] = ["plan", f"{SUBJECTS}:dense", *state]
    here = f"{SUBJECTS}:small"
    many["all cards"] = ["plan", here, "--hardware", "all", "--budget", "8MiB"]
    many["all cards"] += ["--json", str(folder / "all.json")]
    largest = ["plan", here, "--largest"]
    many["largest for all"] = [*largest, "--hardware", "all"]
    many["largest drawn"] = [*largest, "--page", "step.html"]
    many["largest linked"] = [*largest, "--link", "t4"]
    many["fixed"] = ["plan", f"{SUBJECTS}:tiny", "--largest"]
    many["largest late"] = [*largest, "--hardware", "t4"]
    for name in BAD:
        file = folder / "broken.py" if name == "broken" else SUBJECTS
        many[name] = ["plan", f"{file}:{name}", "--hardware", "gh200"]
    return worker.ask(f"{TRIALS}:commands", memory=None, many=many)


@pytest.fixture(scope="module")
def grown(worker: Worker, folder: Path) -> dict[str, Any]:
    """Texts of commands on a card, all from one process."""
    largest = ["plan", f"{SUBJECTS}:small", "--largest", "--budget"]
    many = {
        "grown": [*largest, "64MiB", "--json", str(folder / "grown.json")],
        "multiples": [*largest, "20MiB", "--multiple", "12"],
        "none": [*largest, "1KiB"],
        "little": [*largest, "64MiB", "--host-memory", "1MiB"],
    }
    ended = ["plan", f"{SUBJECTS}:interrupted", "--largest", "--budget", "64MiB"]
    many["ended"] = [*ended, "--json", str(folder / "ended.json")]
    return worker.ask(f"{TRIALS}:commands", memory="256MiB", many=many)


def test_hardware_that_is_not_here_gets_a_roofline(
    said: dict[str, Any], folder: Path
) -> None:
    assert said["roofline"]["code"] == 0, said["roofline"]["errors"]
    assert "a roofline of stated rates, not measured" in said["roofline"]["out"]
    found = json.loads((folder / "roofline.json").read_text())
    assert found["host_peak_bytes"] > 0
    assert found["slowdown"] > 0.99  # all copies may be hidden
    assert 0 < found["utilisation"] <= 1
    assert found["hardware"]["flops"] == PRESETS["v100-pcie"].flops
    assert found["hardware"]["d2h"] == PRESETS["gh200"].d2h
    assert found["predicted_peak_bytes"] <= 8 * MIB
    plan = SwapPlan.from_json(json.dumps(found["plan"]))
    assert plan.swapped_out_bytes == found["swapped_out_bytes"] > 0
    first = found["moved"][0]
    assert first["size"] == max(swap.size for swap in plan.swaps)
    assert first["out"] < first["back"][0] < found["predicted_seconds"]
    assert first["layer"].startswith("functional")
    (drawn,) = data_of((folder / "roofline.html").read_text())
    assert drawn["report"]["swap_count"] == found["swap_count"]
    assert [*dict.fromkeys(kind for kind, *_ in drawn["held"])] == KINDS
    names = (drawn["ops"][place][0] for place, *_ in drawn["tensors"])
    moved = [
        name for name, told in zip(names, drawn["tensors"], strict=True) if told[5]
    ]
    assert {*moved} == {op_of(swap.tensor) for swap in plan.swaps}


def test_where_no_plan_fits_the_least_budget_is_said(
    said: dict[str, Any], folder: Path
) -> None:
    assert (said["refused"]["code"], said["refused"]["errors"]) == (3, "")
    words = "Does not fit, and no plan makes it fit: `budget`"
    assert said["refused"]["out"].startswith(words)
    refused = json.loads((folder / "refused.json").read_text())
    assert (refused["fits"], refused["plan"]) == (False, None)
    assert refused["least_budget_bytes"] > MIB
    (drawn,) = data_of((folder / "refused.html").read_text())
    assert drawn["why"] == refused["message"]
    assert drawn["times"][-1] == pytest.approx(
        1e3 * drawn["report"]["predicted_seconds"]
    )
    assert max(used for _, used in drawn["used"]) > MIB


def test_state_that_finds_no_room_is_planned_for_on_the_host(
    said: dict[str, Any], folder: Path
) -> None:
    assert said["state"]["code"] == 0, said["state"]["out"]
    found = json.loads((folder / "state.json").read_text())
    assert found["on_host_bytes"] % (256 * 256 * 4) == 0
    assert 0 < found["on_host_bytes"] + found["persistent_bytes"] - 3 * MIB < MIB // 8
    assert "lie on the host" in said["state"]["out"]


def test_the_threshold_planner_can_be_asked(said: dict[str, Any]) -> None:
    assert said["rule"]["code"] == 0, said["rule"]["errors"]
    assert "threshold" in said["rule"]["out"]


def test_the_largest_sizes_come_in_order_with_the_next_that_was_tried(
    grown: dict[str, Any], folder: Path
) -> None:
    assert grown["grown"]["code"] == 0, grown["grown"]["errors"]
    rows = json.loads((folder / "grown.json").read_text())["sizes"]
    names = ["as it is", "within 1.1 times", "within 1.3 times", "at all"]
    assert [row["question"] for row in rows] == names
    sizes = [row["size"] for row in rows]
    assert sizes == sorted(sizes)
    assert all(row["size"] < row["next"] <= row["size"] * 9 / 8 for row in rows)
    first, last = rows[0], rows[-1]
    assert all(row["next"] <= row["size"] * 17 / 16 for row in (first, last))
    peaks = [row["predicted_peak_bytes"] for row in rows]
    assert max(peaks) <= 64 * MIB
    assert rows[0]["fits_unplanned"]
    assert not rows[-1]["fits_unplanned"]
    assert rows[0]["why"].startswith("needs 6")
    assert rows[-1]["why"] == "no plan"
    assert [row["slowdown"] <= 1.1 for row in rows[:2]] == [True, True]
    assert "Nothing was run" in grown["grown"]["out"]
    assert f"LMS: size {sizes[0]} needs" in grown["grown"]["errors"]


def test_after_ctrl_c_the_best_sizes_so_far_are_told(
    grown: dict[str, Any], folder: Path
) -> None:
    assert grown["ended"]["code"] == 0, grown["ended"]["errors"]
    found = json.loads((folder / "ended.json").read_text())
    sizes = {(row["size"], row["next"], row["why"]) for row in found["sizes"]}
    assert (sizes, found["is_whole"]) == ({(8, 0, "not tried")}, False)
    assert "so far" in grown["ended"]["out"]
    assert json.loads((folder / "grown.json").read_text())["is_whole"]


def test_a_small_host_makes_sizes_smaller(grown: dict[str, Any], folder: Path) -> None:
    rows = json.loads((folder / "grown.json").read_text())["sizes"]
    (told,) = (line for line in grown["little"]["out"].splitlines() if "at all" in line)
    assert int(told.split("│")[2]) < rows[-1]["size"]


@pytest.mark.long
def test_the_largest_size_trains_on_the_card_and_the_next_does_not(
    tmp_path: Path,
) -> None:
    card, file = "2GiB,8TF,320GB/s,pcie3,7.5", tmp_path / "sizes.json"
    ask = ("--largest", "--hardware", card, "--json", str(file))
    ended = python("-m", "lms", "plan", f"{SUBJECTS}:small", *ask)
    assert ended.returncode == 0, ended.stderr
    last = json.loads(file.read_text())["sizes"][-1]
    run = "import sys; from tests.commands.trials import train; train(int(sys.argv[1]))"
    for size, code in ((last["size"], 0), (last["next"], 1)):
        train = (sys.executable, "-c", run, str(size))
        ended = python("-m", "lms", "emulate", "--dry", "--card", card, "--", *train)
        assert ended.returncode == code, ended.stderr
    assert "--largest" in ended.stderr


def test_sizes_are_multiples_where_the_user_says_so(grown: dict[str, Any]) -> None:
    assert grown["multiples"]["code"] == 0, grown["multiples"]["errors"]
    lines = grown["multiples"]["errors"].splitlines()
    sizes = [line.split()[2] for line in lines if line.startswith("LMS: size")]
    assert sizes
    assert all(int(size.rstrip(":")) % 12 == 0 for size in sizes)


def test_where_no_size_trains_the_code_says_so(grown: dict[str, Any]) -> None:
    assert grown["none"]["code"] == 3, grown["none"]["errors"]
    assert "none" in grown["none"]["out"]


def test_a_function_that_takes_no_number_has_no_largest_size(
    said: dict[str, Any],
) -> None:
    assert said["fixed"]["code"] == 2
    words = "must take one number with --largest, got tiny(). Write"
    assert words in said["fixed"]["errors"]


def test_all_known_cards_are_asked_at_once(said: dict[str, Any], folder: Path) -> None:
    assert said["all cards"]["code"] == 0, said["all cards"]["errors"]
    found = json.loads((folder / "all.json").read_text())["cards"]
    assert [row["hardware"] for row in found] == list(PRESETS)
    assert {row["fits"] for row in found} == {"with the callback"}
    paces = {row["hardware"]: row["unplanned_seconds"] for row in found}
    assert paces["h200"] < paces["rtx-3060"] < paces["t4"]
    lacking = {row["hardware"] for row in found if row["support"]}
    assert lacking == {"rtx-5080", "rtx-5090"}
    assert all(name in said["all cards"]["out"] for name in PRESETS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("largest for all", "`--largest` must be given with one card"),
        ("largest drawn", "one card, and without --page and --output, which show"),
        ("largest linked", "`--link` must not be with --largest: t4. Drop it."),
        ("largest late", "must be called before TensorFlow is imported"),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, words: str, said: dict[str, Any]
) -> None:
    assert said[name]["code"] == 2
    assert words in said[name]["errors"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_subject_is_one_message(name: str, said: dict[str, Any]) -> None:
    assert (said[name]["code"], said[name]["out"]) == (2, "")
    assert BAD[name] in said[name]["errors"].splitlines()[-1]
    assert "Traceback" not in said[name]["errors"]


def test_the_doctor_finds_the_card(worker: Worker) -> None:
    many = {"json": ["doctor", "--json"], "shown": ["doctor"]}
    said = worker.ask(f"{TRIALS}:commands", memory="64MiB", many=many)
    found = {f["topic"]: f for f in json.loads(said["json"]["out"])["findings"]}
    assert "GPU:0, 64.00 MiB of it for TensorFlow" in found["device"]["text"]
    assert all(topic in said["shown"]["out"] for topic in found)


def test_the_plan_is_the_one_that_fit_makes(worker: Worker) -> None:
    """On one device and one host, in the same memory."""
    forecast, fitted = worker.ask(f"{TRIALS}:both_plans", memory="64MiB", budget="7MiB")
    assert forecast["swaps"]
    assert forecast == fitted


def test_a_stored_plan_is_obeyed_with_plain_bits_or_refused(
    worker: Worker, tmp_path: Path
) -> None:
    found = worker.ask(
        f"{TRIALS}:by_stored_plan",
        memory="64MiB",
        subject=f"{SUBJECTS}:resnet",
        budget="12MiB",
        file=str(tmp_path / "plan.json"),
    )
    assert found["said"]["code"] == 0, found["said"]
    assert ", planned into " in found["said"]["out"]
    assert "Largest swapped tensors" in found["said"]["out"]
    told = json.loads((tmp_path / "plan.json.told").read_text())
    assert told["predicted_peak_bytes"] == pytest.approx(found["measured"], rel=0.1)
    assert max(found["measured"], found["predicted"]) <= 12 * MIB
    assert found["replans"] == 0
    assert found["planner"] == "budget"
    assert found["swaps"] > 0
    assert found["obeyed"]
    assert found["equal"]
    assert found["refused"].startswith("`plan` must be a plan of this very step, got")


def test_a_file_that_is_no_plan_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--output` wrote, got"):
        read_settings(plan=tmp_path / "none.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"planner": "budget", "order": [1, 2]}')
    with pytest.raises(PlanError, match=r"Expected `str`, got `int` - at `\$.order"):
        read_settings(plan=wrong)
