"""Becomes another program, on a memory-limited CPU device. Needs no TensorFlow."""

import os
from typing import NoReturn

from lms.machine.emulate import started_environment

__all__ = ["become"]


def become(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Replace this process by a command: signals and exit code are the command's.

    Args:
        command: The program and its arguments; `--` before them is left out.
        variables: Those of `emulate.environment`.

    Raises:
        ValueError: If there is no program, or it cannot be started.
    """
    program = command[1:] if command[:1] == ["--"] else command
    if not program:
        raise ValueError(
            "COMMAND must name a program, got nothing. Write it after `--`."
        )
    try:
        os.execvpe(program[0], program, started_environment(variables))
    except OSError as error:
        raise ValueError(
            f"COMMAND must be a program that can be started, got '{program[0]}' "
            f"({error.strerror}). Check its name and path."
        ) from error
