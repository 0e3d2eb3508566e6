"""Draw the way from `fit` to the search, as it is walked: one line for each hop.

    python docs/spine.py            prints it
    python docs/spine.py --write    puts it into how_it_works.md

A small training on an emulated card stops where the search for a plan begins, and its
stack is read.
"""

import argparse
import inspect
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import lms

DOCS = Path(__file__).resolve().parent
MARKS = "<!-- spine -->\n", "<!-- /spine -->\n"


class FoundError(BaseException):
    """The search has begun."""


def main() -> int:
    """Print or write the spine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into how_it_works.md")
    spine = drawn(walked())
    if not parser.parse_args().write:
        print(spine, end="")
        return 0
    page = DOCS / "how_it_works.md"
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n```text\n{spine}```\n\n{MARKS[1]}{after}")
    return 0


def walked() -> list[FrameType]:
    """The frames of lms from `fit` to the search, in this order."""
    lms.emulate.limit_memory("24MiB")
    import keras
    import numpy as np

    from lms.planning import select

    frames: list[FrameType] = []

    def found(*_: Any, **_by_name: Any) -> None:
        frame = inspect.currentframe()
        while frame := frame and frame.f_back:
            frames.insert(0, frame)
        raise FoundError

    select.plan_by_budget = found
    model = keras.Sequential([keras.Input((64, 64, 3))])
    for _ in range(6):
        model.add(keras.layers.Conv2D(16, 3, padding="same", activation="relu"))
    model.compile("sgd", "mse")
    data = np.zeros((24, 64, 64, 3)), np.zeros((24, 64, 64, 16))
    with suppress(FoundError):
        model.fit(*data, 12, verbose="0", callbacks=[lms.LMSCallback(verbose=0)])
    home = Path(lms.__file__).parent
    return [f for f in frames if home in Path(f.f_code.co_filename).parents]


def drawn(frames: list[FrameType]) -> str:
    """A line for each: number, file, function, and the first line of its docstring."""
    home = Path(lms.__file__).parent.parent
    lines: list[str] = []
    for number, frame in enumerate(frames, 1):
        code = frame.f_code
        file = Path(code.co_filename).relative_to(home)
        about = str(code.co_consts[0] or "").partition("\n")[0]
        lines.append(f"{number:2} {file!s:28} {code.co_name:16} {about}".rstrip())
    lines.append(f"{len(lines) + 1:2} {'the search':28} plan_by_budget")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
