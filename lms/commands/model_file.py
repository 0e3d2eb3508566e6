"""The Keras model and the batch that a command takes, named as FILE.py:function.

    # mine.py
    def model_and_batch():
        model = ...  # compiled
        return model, (tf.TensorSpec([1, 48, 48, 48, 4]), tf.TensorSpec([1, 1]))

A batch is what `fit` gets for one step: (x, y) or (x, y, sample_weight), of specs or of
arrays.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Subject", "find_file", "read_function", "read_subject", "subject_of"]


class Subject(NamedTuple):
    """A compiled Keras model, and specs or arrays of one step of its training."""

    model: Any
    batch: tuple[Any, ...]


def find_file(name: str) -> tuple[Path, str]:
    """Return the file and the function of a name; loads nothing.

    Raises:
        ValueError: If there is no such file.
    """
    file, _, function = name.rpartition(":")
    if not file or not function:
        raise ValueError(_rule(name, "no function"))
    path = Path(file)
    if not path.is_file():
        raise ValueError(_rule(name, "no such file"))
    if path.suffix != ".py":
        raise ValueError(_rule(name, "a file that does not end with .py"))
    return path, function


def read_subject(name: str) -> Subject:
    """Load the file, call the function, and return what it made.

    Raises:
        ValueError: If there is no such file or function, or if the function fails or
            returns something else.
    """
    return subject_of(name, read_function(name)())


def read_function(name: str, *example: int) -> Callable[..., Any]:
    """Load the file and return the function, whose errors are one line each.

    The file can import from its own folder, as if the file were run.

    Raises:
        ValueError: If there is no such file or function, or if the function does not
            take arguments such as `example`.
    """
    path, function = find_file(name)
    module = _guarded(name, path, lambda: _load(path))
    made = getattr(module, function, None)
    if not callable(made):
        got = f"a file without a function `{function}`"
        raise ValueError(_rule(name, got))  # noqa: TRY004 - what was written
    taken = ", ".join(signature(made).parameters)
    try:
        signature(made).bind(*example)
    except TypeError as error:
        rule = "one number with --largest" if example else "no argument"
        raise ValueError(
            f"`{name}` must take {rule}, got {function}({taken}). Write "
            f"def {function}({'batch' if example else ''}), or "
            f"{'leave --largest out' if example else 'add --largest'}."
        ) from error
    return lambda *numbers: _guarded(name, path, lambda: made(*numbers))


def subject_of(name: str, found: Any) -> Subject:
    """Check what a function made.

    Raises:
        ValueError: If it is not a compiled model and a batch.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(_rule(name, f"{type(found).__name__} from the function"))
    model, batch = found
    if not getattr(model, "compiled", False):
        raise ValueError(_rule(name, f"{type(model).__name__} that is not compiled"))
    if not isinstance(batch, tuple | list) or not 1 <= len(batch) <= 3:
        got = f"{type(batch).__name__} as the batch"
        if hasattr(batch, "element_spec"):
            got += ", whose batch is `next(iter(dataset))`"
        raise ValueError(_rule(name, got))
    return Subject(model, tuple(batch))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader  # noqa: PT018 - of every file that ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module  # Keras looks classes up there
    spec.loader.exec_module(module)
    return module


def _guarded(name: str, path: Path, run: Callable[[], Any]) -> Any:
    """Run the user's code; report its error in one line, with the line number."""
    try:
        return run()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).name == path.name]
        place = f" in line {lines[-1]}" if lines else ""
        words = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"`{name}` must run without an error, got {type(error).__name__}{place}: "
            f"{words}. Call the function in Python to see the traceback."
        ) from error


def _rule(name: str, got: str) -> str:
    rule = "be FILE.py:function, whose function returns" if ":" in name else "return"
    return (
        f"`{name}` must {rule} a compiled Keras model and a batch such as (x, y), got "
        f"{got}. Write one: def mine(): return model, (tf.TensorSpec([8, 224, 224, "
        "3]), tf.TensorSpec([8]))."
    )
