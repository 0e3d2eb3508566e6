"""Slurm starts the workers and queues the jobs: a cluster of this machine alone.

Debian's slurm-wlm is started under a folder of the test, as root.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue")
HERE = os.environ["PATH"] + ":/usr/sbin"
MISSING = [name for name in PROGRAMS if shutil.which(name, path=HERE) is None]

pytestmark = [
    pytest.mark.tf,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: slurm-wlm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged are run by root"),
]

ROOT = Path(__file__).parents[2]
CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPort={first}
SlurmdPort={second}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's programs reach a cluster of this machine."""
    folder = tmp_path / "cluster"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        first, second = (each.getsockname()[1] for each in (one, other))
    host = socket.gethostname().split(".")[0]
    words = {"host": host, "folder": folder, "first": first, "second": second}
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(**words))
    environ = {**os.environ, "PATH": HERE, "SLURM_CONF": str(config)}
    environ |= {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    munged = [f"--socket={folder}/munge.socket", f"--key-file={key}"]
    munged += [
        f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")
    ]
    commands = (
        ["munged", "--foreground", "--force", *munged],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D"],
    )
    with ExitStack() as stack:
        for command in commands:
            started = stack.enter_context(subprocess.Popen(command, env=environ))
            stack.callback(started.terminate)
        _until(lambda: "idle" in _said(["sinfo", "--noheader"], environ))
        yield environ


def _said(command: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def _until(holds: Callable[[], bool], tries: int = 600) -> None:
    for _ in range(tries):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("the cluster does not get there")


def test_srun_starts_two_workers_with_support_in_each(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    settings = {"folder": str(tmp_path)}
    code = f"from tests.workers.clustered import train; train({settings})"
    command = ["srun", "-n", "2", sys.executable, "-c", code]
    subprocess.run(command, env=cluster, check=True, timeout=200)
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first["size"] == 2
    assert first["moved"] > 0
    assert first["weights"] == second["weights"]
