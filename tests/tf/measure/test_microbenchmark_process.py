"""Ops measured in another process, wherever this one was started."""

import subprocess
import sys
from pathlib import Path

import pytest

import lms

pytestmark = [pytest.mark.tf, pytest.mark.slow]

_SCRIPT = """
import sys
sys.path.insert(1, {packages!r})
import tensorflow as tf
from lms.tf import compat
from lms.tf.measure.microbenchmark import Bench
from lms.tf.measure.microbenchmark_process import scratch_elsewhere

tf.config.experimental.enable_op_determinism()
node = compat.NodeDef(name="sum", op="AddV2", input=["a", "b"])
node.attr["T"].type = tf.float32.as_datatype_enum
spec = tf.TensorSpec([64, 64])
bench = Bench(
    nodes=(node,),
    arguments=(("a", spec, None), ("b", spec, None)),
    outputs=("sum:0",),
    key=b"sum",
)
print(scratch_elsewhere([(bench, 3 * 64 * 64 * 4)]))
"""


def test_files_beside_the_user_do_not_get_in_the_way(tmp_path: Path) -> None:
    """Not even a `json.py` in the folder that training was started in."""
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')")
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    packages = str(Path(lms.__file__).parents[1])
    script.write_text(_SCRIPT.format(packages=packages))
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "{b'sum': 0}", ended.stderr
