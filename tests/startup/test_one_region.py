"""An emulated device's memory is one region in every Python that is started for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lms.machine import emulate

ROOT = Path(__file__).parents[2]

# Without one region, those of 1 MiB would lie in regions of 2, 4, 8 and 16 MiB.
VARIABLES_FIRST = """
import tensorflow as tf

kept = [tf.raw_ops.Empty(shape=[1 << 20], dtype=tf.uint8) for _ in range(16)]
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] < 20 << 20)
try:
    tf.raw_ops.Empty(shape=[42, 1 << 20], dtype=tf.uint8)
    print("fits")
except tf.errors.ResourceExhaustedError as error:
    print("runs out")
"""

# What the start has left: a finder that waits for TensorFlow, and nothing else.
STARTED = """
import sys

print(sum(type(finder).__name__ == "_Finder" for finder in sys.meta_path))
print(any(name.split(".")[0] in ("lms", "tensorflow") for name in sys.modules))
print(any(entry.endswith("startup") for entry in sys.path))
"""

WAITS_ALONE = "1\nFalse\nFalse\n"


def output_of(
    code: str, memory: str = "64MiB", env: dict[str, str] | None = None
) -> str:
    ended = emulate.run(
        [sys.executable, "-c", code],
        memory=memory,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.tf
@pytest.mark.slow
def test_a_tensor_of_most_of_the_device_fits_beside_what_was_made_first() -> None:
    assert output_of(VARIABLES_FIRST) == "True\nfits\n"


@pytest.mark.tf
@pytest.mark.slow
def test_the_devices_can_still_be_configured_after_the_import() -> None:
    code = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
tf.config.threading.set_inter_op_parallelism_threads(1)
print(len(tf.config.list_logical_devices("CPU")), float(tf.add(1.0, 2.0)))
"""
    assert output_of(code) == "2 3.0\n"


def test_it_waits_for_tensorflow_and_imports_nothing() -> None:
    assert output_of(STARTED) == WAITS_ALONE


def test_another_sitecustomize_on_the_path_runs_as_if_this_were_not_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('another', __name__)\n")
    path = {"PYTHONPATH": str(tmp_path)}
    assert output_of(STARTED, env=path) == f"another sitecustomize\n{WAITS_ALONE}"


def test_a_device_within_a_device_has_it_once() -> None:
    inner = f"""
import sys
from lms.machine import emulate

emulate.run([sys.executable, "-c", {STARTED!r}], memory="1MiB", check=True)
"""
    assert output_of(inner, env={"PYTHONPATH": str(ROOT)}) == WAITS_ALONE


def test_the_command_line_does_it_where_lms_is_not_on_the_path(tmp_path: Path) -> None:
    program = f"cd '{tmp_path}' && exec '{sys.executable}' -c '{STARTED}'"
    emulated = ["emulate", "--memory", "96MiB", "--", "sh", "-c", program]
    ended = subprocess.run(
        [sys.executable, "-m", "lms", *emulated],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == (WAITS_ALONE, "")


def test_a_python_that_is_not_emulated_is_left_alone() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import sitecustomize\n"
    folder = Path(emulate.__file__).parents[1] / "startup"
    plain = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPU_")}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code + STARTED, str(folder)],
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "0\nFalse\nFalse\n", ended.stderr
