"""The command line, as a user meets it.

What takes the place of a process runs in one of its own.
"""

import sys
from functools import partial
from itertools import chain

import pytest

from lms.__main__ import main
from tests.programs import python

EMULATED = pytest.mark.usefixtures("card")
NAMED = {"CARD": ["emulate", "--memory", "1MiB"]}
NO_SIZE = "must be a size such as '1.5GiB', got 'lots'."
TOO_LITTLE = "must be at least 1 MiB, which TensorFlow's"
LIMIT = "import os; print(int(os.environ['LMS_CARD_MEMORY']) >> 20)"


lms = partial(python, "-m", "lms")


@EMULATED
@pytest.mark.parametrize("separator", [("--",), ()])
def test_a_command_runs_with_the_memory_it_was_given(
    separator: tuple[str, ...],
) -> None:
    ended = lms("emulate", "--memory", "96MiB", *separator, sys.executable, "-c", LIMIT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "96\n", "")


@EMULATED
def test_the_arguments_of_a_command_are_left_alone() -> None:
    code = "import sys; print(sys.argv[1:])"
    ended = lms(
        *("emulate", "--memory=1MiB", "--", sys.executable, "-c", code),
        *("--memory", "x", "--", "--help"),
    )
    assert ended.stdout == "['--memory', 'x', '--', '--help']\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required"),
        ("train", "invalid choice: 'train'"),
        ("emulate -- true", "`memory` must be given without a card, got None"),
        ("emulate --dry -- true", "`card` must be named for a dry card, got None"),
        ("emulate --card abacus", "argument --card: a card must be one of p100"),
        ("emulate --card rtx3061 -- true", "got 'rtx3061'. Did you mean rtx-3060"),
        ("CARD --cards 9 -- true", "`cards` must be from 1 to 8, got 9."),
        ("CARD", "COMMAND must name a program, got nothing."),
        ("CARD --", "COMMAND must name a program"),
        ("emulate --memory lots -- true", f"argument --memory: `memory` {NO_SIZE}"),
        ("emulate --memory 1KiB -- true", f"argument --memory: `memory` {TOO_LITTLE}"),
        ("CARD -- no-such-program", "(No such file or directory). Check its name"),
        ("CARD -- /", "got '/' (Permission denied)."),
        ("plan", "arguments are required: FILE.py:function"),
        ("plan none.py:made", "got no such file."),
        ("plan HERE", "got no function."),
        ("plan README.md:made", "got a file that does not end with .py."),
        ("plan HERE:lms --budget lots", f"argument --budget: `budget` {NO_SIZE}"),
        ("plan HERE:lms --hardware abacus", "argument --hardware: a card must be one"),
        ("plan HERE:lms --hardware 8GiB,1TF", "--hardware: a card must have memory,"),
        ("plan HERE:lms --link rope", "argument --link: a card must be one of"),
        (
            "plan HERE:lms --multiple 0",
            "--multiple: the multiple must be a whole number above 0",
        ),
        ("doctor x", "unrecognized arguments: x"),
        ("CARD --h2d 1GB", "--h2d and --d2h must be given together"),
        ("CARD --link c2c --h2d 1GB --d2h 1GB", "--link must be given"),
        ("CARD --link rope", "--link: invalid choice: 'rope' (choose from"),
        ("CARD --latency 1", "--latency must come with a link"),
        ("CARD --h2d 0 --d2h 1GB", "be bytes per second above 0"),
        ("CARD --h2d fast --d2h 1GB", "be bytes per second above 0"),
        ("CARD --slow-motion 0.5", "`slow_motion` must be at least 1, got 0.5"),
    ],
)
def test_a_mistake_is_a_short_error_with_exit_code_2(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    known = [NAMED.get(w, [w.replace("HERE", __file__)]) for w in words.split()]
    arguments = tuple(chain(*known))
    if arguments[:1] == ("emulate",):
        request.getfixturevalue("card")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert message in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 4


def test_help_says_the_exit_codes_and_loads_no_tensorflow() -> None:
    code = "import sys, lms.__main__ as m; m.main(['plan', '--help'])"
    check = "import atexit; atexit.register(lambda: print('tensorflow' in sys.modules))"
    ended = python("-c", f"import sys; {check}; {code}")
    assert "3 when no plan fits" in " ".join(ended.stdout.split())
    assert ended.stdout.endswith("False\n")


@EMULATED
def test_a_named_link_is_taken() -> None:
    code = "import os; print(os.environ['LMS_CARD_H2D'])"
    command = ("--", sys.executable, "-c", code)
    ended = lms("emulate", "--memory", "1MiB", "--link", "pcie3", *command)
    assert float(ended.stdout) == 12e9


@EMULATED
def test_a_card_within_a_card_is_refused() -> None:
    inner = (sys.executable, "-m", "lms", "emulate", "--memory", "1MiB", "--", "true")
    ended = lms("emulate", "--memory", "96MiB", "--", *inner)
    assert ended.returncode == 2
    assert "a card must not be emulated within a program that has one" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tflms ")
