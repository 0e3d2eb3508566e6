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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Subject", "find_file", "read_subject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and one batch of its training.

    Args:
        name: FILE.py:function, as the user wrote it.
        model: A compiled Keras model.
        batch: Specs or arrays of one step.
    """

    name: str
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
    """Load the file and call the function.

    The file can import from its own folder, as if the file were run.

    Raises:
        ValueError: If there is no such file or function, or if the function fails or
            returns something else.
    """
    path, function = find_file(name)
    module = _guarded(name, path, lambda: _load(path))
    made = getattr(module, function, None)
    if not callable(made):
        got = f"a file without a function `{function}`"
        raise ValueError(_rule(name, got))  # noqa: TRY004 - what was written
    found = _guarded(name, path, made)
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
    return Subject(name=name, model=model, batch=tuple(batch))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
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
    return (
        f"`{name}` must be FILE.py:function, whose function returns a compiled Keras "
        f"model and a batch such as (x, y), got {got}. Write "
        "one: def mine(): return model, (tf.TensorSpec([8, 224, 224, 3]), "
        "tf.TensorSpec([8]))."
    )
