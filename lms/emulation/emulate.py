"""Start programs on an emulated card, or give this process a card.

    python -m lms emulate --memory 64MiB -- python train.py     another program
    lms.emulate.limit_memory("64MiB")                           this one, first line

A real card of the machine is hidden from these programs alone.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from lms.emulation.build import COMPUTING, DRIVER, DRY, built
from lms.emulation.card import LinkRates, card_variables, emulated_memory
from lms.emulation.races import PATH, RACE_VARIABLES, race_variables
from lms.errors import LMSError

__all__ = ["become", "environment", "limit_memory", "load", "run"]

_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


def environment(
    memory: str | int | None = None,
    *,
    inherited: Mapping[str, str] = os.environ,
    **card: Any,
) -> dict[str, str]:
    """Make the environment of a program that is to run on an emulated card.

    The first call compiles the card, which takes one to four minutes.

    Args:
        memory: TensorFlow's limit on the card, such as "96MiB".
        inherited: Variables to extend; by default this process's.
        **card: The other arguments of `lms.emulation.card.card_variables`.

    Raises:
        LMSError: If `inherited` is the environment of a program on an emulated card.
        TypeError: If `memory` is neither text nor a whole number.
        UnsupportedError: If no card can be emulated here; names the reason.
        ValueError: If a value breaks its rule.

    Example:
        Not run here, as it may compile the card:

            variables = environment("96MiB", link=LinkRates(h2d=12e9, d2h=12e9))
            subprocess.run([sys.executable, "train.py"], env=variables)
    """
    own = card_variables(memory, **card)
    if (nested := emulated_memory(inherited)) is not None:
        raise LMSError(
            "a card must not be emulated within a program that has one, got one of "
            f"{nested} bytes. Start the program outside of it."
        )
    folder, front = built(), DRY if own["LMS_CARD_DRY"] == "1" else COMPUTING
    path = [str(folder), *filter(None, [inherited.get(_LIBRARY_PATH)])]
    return {
        **inherited,
        **own,
        **_settings(own, inherited.get("XLA_FLAGS", "")),
        _LIBRARY_PATH: os.pathsep.join(path),
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(folder / front),
    }


def limit_memory(
    memory: str | int | None = None, *, races: bool = False, **card: Any
) -> None:
    """Give this process an emulated card, before TensorFlow is imported.

    Args:
        memory: As in `environment`.
        races: Whether the card looks for races, which `lms.emulation.races.found_races`
            then tells.
        **card: As in `environment`.

    Raises:
        LMSError: If TensorFlow was imported already, or the process has another
            emulated card. An equal card, as in spawned children, stays.
        TypeError: As in `environment`.
        UnsupportedError: As in `environment`.
        ValueError: As in `environment`.

    Example:
        The first lines of a program (not run here: they would limit this process):

            import lms
            lms.emulate.limit_memory("96MiB")
            import tensorflow as tf
    """
    if "tensorflow" in sys.modules:
        raise LMSError(
            "`emulate.limit_memory` must be called before TensorFlow is imported, "
            "got a process in which it already is. Call it on the first line of the "
            "program, or start the program with `python -m lms emulate`."
        )
    own = card_variables(memory, **card)
    present = {k: v for k, v in os.environ.items() if k.startswith("LMS_CARD_")}
    looks = {name: present.pop(name) for name in RACE_VARIABLES if name in present}
    if own != present:
        own = environment(memory, **card)
    load()
    os.environ.update(own)
    if races and PATH not in looks:
        folder = tempfile.mkdtemp(prefix="lms-races-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ.update(race_variables(Path(folder) / "races"))


def load() -> None:
    """Load the card's libraries into this process, so that TensorFlow finds them.

    For a server that imports TensorFlow and forks: the first op reads `LMS_CARD_*`, so
    each child may have a card of its own. A child first calls the front's
    `TF_InitKernel`.
    """
    for name in sorted(built().glob("lib*.so.*"), key=lambda path: path.name != DRIVER):
        ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)


def run(
    command: Sequence[str],
    *,
    memory: str | int | None = None,
    link: LinkRates | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command on an emulated card and wait for its end.

    Args:
        command: The program and its arguments; at least the program.
        memory: As in `environment`.
        link: As in `environment`.
        **options: The other arguments of `subprocess.run`, but for `env`.

    Raises:
        LMSError: As in `environment`.
        OSError: If the program cannot be started.
        TypeError: As in `environment`.
        UnsupportedError: As in `environment`.
        ValueError: As in `environment`.
    """
    started = environment(memory, link=link)
    return cast(Any, subprocess.run)(command, env=started, **options)


def become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a command, with the command's signals and exit code.

    Args:
        command: The program and its arguments; `--` before them is left out.
        variables: The command's whole environment.

    Raises:
        ValueError: If there is no program, or it cannot be started.
    """
    program = list(command[1:] if command[:1] == ["--"] else command)
    if not program:
        raise ValueError(
            "COMMAND must name a program, got nothing. Write it after `--`."
        )
    try:
        os.execvpe(program[0], program, dict(variables))
    except OSError as error:
        raise ValueError(
            f"COMMAND must be a program that can be started, got '{program[0]}' "
            f"({error.strerror}). Check its name and path."
        ) from error


def _settings(card: Mapping[str, str], xla: str) -> dict[str, str]:
    """Return TensorFlow's own variables.

    oneDNN is on: 3D convolutions without oneDNN need about three times the memory and
    ten times the time. Autotuning is off: a dry card has nothing to tune, and XLA would
    run its candidates when asked for a program's memory. Workers sum without NCCL.
    """
    cards = range(int(card["LMS_CARD_COUNT"]))
    dry = card["LMS_CARD_DRY"] == "1"
    return {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "XLA_FLAGS": f"{xla} --xla_gpu_autotune_level=0".strip(),
        "LMS_REDUCTIONS": "ring",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, cards)),
        **({"TF_CUDNN_USE_AUTOTUNE": "0"} if dry else {}),
    }
