"""TensorFlow's own GPU runtime, as it behaves on an emulated card."""

import subprocess
import sys
from pathlib import Path

import pytest

import lms
from lms.emulation.card import LinkRates
from lms.errors import LMSError
from tests.programs import python
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.emulation.trials"


def test_tensorflow_sees_as_many_cards_as_were_asked_for(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:devices", memory="32MiB", card={"cards": 3})
    assert found["names"] == [f"/device:GPU:{i}" for i in range(3)]
    assert found["details"] == [[8, 0]] * 3
    none = worker.ask(f"{TRIALS}:devices", memory=None)
    assert none["names"] == []


def test_cards_are_named_by_what_they_are(worker: Worker) -> None:
    link = {"link": LinkRates(h2d=6e9, d2h=3e9)}
    cards = [link, link, {**link, "card": "v100-pcie", "slow_motion": 10}]
    trial = f"{TRIALS}:devices"
    found = [worker.ask(trial, memory="64MiB", card=card) for card in cards]
    assert [one["details"] for one in found] == [[[8, 0]], [[8, 0]], [[7, 0]]]
    one, alike, other = (each["said"][0] for each in found)
    assert "6+3 GB/s" in one
    assert one == alike != other


def test_the_allocator_s_limit_is_the_card_s_memory(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:run_out", memory="64MiB")
    assert "OOM when allocating tensor" in found["said"]
    assert "GPU:0 by allocator GPU_0_bfc" in found["said"]
    assert 56 <= found["MiB"] <= 64
    assert found["again"] == found["MiB"]


def test_copies_are_counted_and_take_as_long_as_the_link_says(worker: Worker) -> None:
    size, card = 4 << 20, {"link": LinkRates(h2d=20e6, d2h=10e6)}
    found = worker.ask(f"{TRIALS}:copies", memory="64MiB", card=card, size=size)
    assert found["same"]
    assert all(size <= moved < size + 4096 for moved in found["moved"].values())
    least = size / 20e6 + size / 10e6
    assert least <= found["seconds"] < 2 * least
    # A kernel that adds to what lies on the host reads and writes it over the link.
    added = worker.ask(f"{TRIALS}:added_on_host", memory="64MiB", card=card, size=size)
    assert added["same"]
    assert least <= added["seconds"] < 2 * least


def test_a_trace_has_kernels_and_copies(worker: Worker, tmp_path: Path) -> None:
    path = str(tmp_path / "trace")
    assert worker.ask(f"{TRIALS}:traced", memory="64MiB", path=path) == ["0", "2"]


def test_slices_are_updated_without_xla(worker: Worker) -> None:
    assert worker.ask(f"{TRIALS}:updated_slices", memory="64MiB") == [True, True]


def test_pixels_become_channels_where_those_come_first(worker: Worker) -> None:
    card = {"card": "v100-pcie"}
    assert worker.ask(f"{TRIALS}:shuffled", memory="64MiB", card=card) == [True, True]


def test_what_would_be_compiled_is_interpreted(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:compiled", memory="64MiB")
    assert found["auto"] == [True, *found["never"][1:]]
    assert found["function"] == 7.0


def test_a_step_may_be_split_over_two_cards(worker: Worker) -> None:
    found = worker.ask(f"{TRIALS}:split_over_two", memory="64MiB", card={"cards": 2})
    assert found["total"] == 8 * 64 * 64 * 64
    assert found["between"] == 8 * 64 * 4


def test_a_program_limits_itself_on_its_first_line() -> None:
    code = (
        "import lms; lms.emulate.limit_memory('32MiB')\n"
        "lms.emulate.limit_memory('32MiB')\n"  # again, as a spawned child does
        "import tensorflow as tf\n"
        "held = [tf.ones([1 << 20]) for _ in range(6)]\n"
        "print(held[0].device)\n"
        "try: held += [tf.ones([1 << 20]) for _ in range(6)]\n"
        "except tf.errors.ResourceExhaustedError: print('full')\n"
    )
    ended = python("-c", code)
    assert ended.stdout.splitlines()[-2:] == [
        "/job:localhost/replica:0/task:0/device:GPU:0",
        "full",
    ]


def test_importing_lms_before_the_first_tensor_sets_the_allocator_up() -> None:
    emulate = ("-m", "lms", "emulate", "--memory", "32MiB", "--", sys.executable, "-c")
    settings = "from lms.tf import compat; options = compat._eager_context().config"
    told = "print(options.gpu_options.experimental.internal_fragmentation_fraction > 0)"
    orders = ("import lms; tf.ones(1)", "tf.ones(1); import lms")
    codes = [f"import tensorflow as tf; {o}; {settings}; {told}" for o in orders]
    ended = [python(*emulate, code) for code in codes]
    assert [one.stdout.splitlines()[-1] for one in ended] == ["True", "False"]
    warned = ["above the first tensor or model" in one.stderr for one in ended]
    assert warned == [False, True]


def test_flags_of_xla_are_added_to_those_there_are() -> None:
    made = lms.emulate.environment("32MiB", inherited={"XLA_FLAGS": "--xla_a=1"})
    assert made["XLA_FLAGS"] == "--xla_a=1 --xla_gpu_autotune_level=0"


def test_it_is_too_late_once_tensorflow_is_there() -> None:
    assert "tensorflow" in sys.modules
    with pytest.raises(LMSError, match="must be called before TensorFlow is imported"):
        lms.emulate.limit_memory("32MiB")


def test_a_program_that_crashes_ends_as_it_would(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    command = [sys.executable, "-m", "lms", "emulate", "--memory", "32MiB", "--"]
    ended = subprocess.run(
        [*command, sys.executable, "-c", code], cwd=tmp_path, check=False
    )
    assert ended.returncode == -11
    assert list(tmp_path.iterdir()) == []
