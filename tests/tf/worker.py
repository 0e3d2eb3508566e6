"""Functions run in processes of their own, each with its own device memory.

TensorFlow reads its memory limit once, counts its peak per process, and keeps some
memory of models that are gone; so each question gets a fresh process. Importing
TensorFlow takes seconds: one server imports it and forks for each question. That is
safe as long as the server runs no op, since TensorFlow starts its threads with the
first one. The emulated card's libraries are loaded before; each child sets its card up
and then hands TensorFlow the card's kernels. Children's garbage collectors leave out
what the server has imported: to go through it again and again takes a good part of a
short training. Plans are searched for with fewer tries: nobody here asks how fast they
are.
"""

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lms.emulation import emulate
from lms.emulation.build import COMPUTING, built
from lms.emulation.card import card_variables
from lms.planning import tuning
from lms.storage.cache import VARIABLE

__all__ = ["Worker", "WorkerError"]

_TRIES = (4, 8)


class WorkerError(Exception):
    """The function raised, or its process died; the message is its traceback."""


class Worker:
    """A server of fresh processes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=_without_card(os.environ)
            | {
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": "1",
                "XLA_FLAGS": "--xla_gpu_autotune_level=0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(
        self,
        function: str,
        *,
        memory: str | int | None,
        card: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a function in a fresh process.

        Args:
            function: `module:function`; it returns what JSON can hold.
            memory: What TensorFlow may use of the emulated card; None for no card.
            card: The other arguments of `lms.emulation.card.card_variables`.
            environ: More variables of the process.
            **arguments: Its arguments.

        Raises:
            WorkerError: If it raised, or the process died.
        """
        variables = {"CUDA_VISIBLE_DEVICES": "-1", VARIABLE: os.environ[VARIABLE]}
        if memory is not None:
            variables |= card_variables(memory, **(card or {}))
            count = int(variables["LMS_CARD_COUNT"])
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
        variables |= environ or {}
        (returned,) = self._returned([(function, variables, arguments)])
        return returned

    def ask_together(
        self,
        function: str,
        environs: Sequence[Mapping[str, str]],
        *,
        memory: str,
        **arguments: Any,
    ) -> list[Any]:
        """Call a function in processes that run side by side, each on a card."""
        known = card_variables(memory, cards=len(environs))
        each = [
            {**known, "CUDA_VISIBLE_DEVICES": str(k), **own}
            for k, own in enumerate(environs)
        ]
        return self._returned([(function, own, arguments) for own in each])

    def _returned(self, questions: Sequence[Any]) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(questions) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        for answer in answers:
            if "raised" in answer:
                raise WorkerError(answer["raised"])
        return [answer["returned"] for answer in answers]

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.communicate()


def _without_card(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server that sets cards up itself."""
    own = ("LMS_CARD_", "TF_PLUGGABLE_", "TF_CUDNN_", "LD_LIBRARY_PATH")
    own += ("CUDA_VISIBLE_",)
    return {name: text for name, text in environ.items() if not name.startswith(own)}


def _serve() -> None:
    """Answer until the questions end; what else is printed goes to the error stream."""
    assert "lms.planning.strategies" not in sys.modules, "it has a value of its own"
    tuning.TUNING = replace(tuning.TUNING, search_tries=_TRIES)
    answers = os.dup(1)
    os.dup2(2, 1)
    emulate.load()
    importlib.import_module("keras")
    importlib.import_module("tensorflow")
    importlib.import_module("lms.fit.fitted")  # before there are devices, as users do
    for line in sys.stdin:
        questions = json.loads(line)
        for question in questions:
            _import_module_of(question)
        gc.collect()
        gc.freeze()
        children = [_started(question) for question in questions]
        told = [_read(source) for _, source, _ in children]
        # Nobody ends before all have answered: others may still ask him.
        ended = [_ended(child, leave) for child, _, leave in children]
        found = [text or end for text, end in zip(told, ended, strict=True)]
        os.write(answers, b"[" + b", ".join(found) + b"]\n")


def _import_module_of(question: Any) -> None:
    """Import it for all children; if it cannot be, the child says why."""
    with suppress(Exception):
        importlib.import_module(question[0].partition(":")[0])


def _started(question: Any) -> tuple[int, int, int]:
    """A child, where its answer comes from, and what lets it go."""
    (source, sink), (wait, leave) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sink, _answer(*question).encode())
        os.close(sink)
        os.read(wait, 1)
        os._exit(0)
    os.close(sink)
    os.close(wait)
    return child, source, leave


def _read(source: int) -> bytes:
    with os.fdopen(source, "rb") as answer:
        return answer.read()


def _ended(child: int, leave: int) -> bytes:
    with suppress(BrokenPipeError):
        os.write(leave, b".")
    os.close(leave)
    _, status = os.waitpid(child, 0)
    return json.dumps({"raised": f"the process ended with status {status}"}).encode()


def _answer(
    name: str, variables: Mapping[str, str], arguments: Mapping[str, Any]
) -> str:
    os.environ.update(variables)
    module, _, function = name.partition(":")
    try:
        ctypes.CDLL(str(built() / COMPUTING)).TF_InitKernel()
        returned = getattr(importlib.import_module(module), function)(**arguments)
        return json.dumps({"returned": returned})
    except Exception:
        return json.dumps({"raised": traceback.format_exc()})


if __name__ == "__main__":
    _serve()
