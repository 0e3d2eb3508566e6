"""Each way a command can end: a line, an exit code, and no traceback."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lms.commands.endings import end_well
from lms.errors import HostMemoryError
from lms.storage.files import write_text
from tests.programs import python


def ended(run: Callable[[], object], advice: str = "Go on.") -> tuple[int, str]:
    said = list[str]()
    code = end_well(lambda: bool(run()), said.append, advice=lambda: advice)
    assert len(said) <= 1
    return code, "".join(said)


def fill_the_disk() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("more than fits")


def fail(error: BaseException) -> Callable[[], object]:
    def run() -> None:
        raise error

    return run


def test_a_command_s_own_code_is_passed_on() -> None:
    assert end_well(lambda: 7, print) == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
def test_a_full_disk_is_a_line_that_says_what_to_do() -> None:
    code, said = ended(fill_the_disk)
    assert code == 2
    assert said == (
        "Error: could not use a file: No space left on device. Check its path, "
        "its permissions, and the free space on its disk. Go on."
    )


def test_errors_of_our_own_are_told_as_they_are() -> None:
    own = "`x` must be y, got z. Do w."
    assert ended(fail(ValueError(own))) == (2, f"Error: {own}")
    assert ended(fail(FileNotFoundError(own))) == (2, f"Error: {own}")
    assert ended(fail(HostMemoryError(own))) == (3, f"Error: {own}")
    code, said = ended(fail(MemoryError("Unable to allocate 3 EiB")))
    assert (code, "memory (Unable to allocate 3 EiB)" in said) == (3, True)


def test_a_mistake_in_the_program_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AssertionError, match="ours"):
        ended(fail(AssertionError("ours")))
    monkeypatch.setenv("LMS_DEBUG", "1")
    with pytest.raises(ValueError, match="theirs"):
        ended(fail(ValueError("theirs")))


def test_a_signal_counts_whatever_a_library_makes_of_it() -> None:
    def importing() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    assert ended(importing) == (130, "Ended by Ctrl-C. Go on.")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [("SIGINT", 130, "Ended by Ctrl-C. Rest."), ("SIGTERM", 143, "Ended by SIGTERM.")],
)
def test_signals_end_with_a_line_and_delete_drafts(
    number: str, code: int, line: str, tmp_path: Path
) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from lms.commands.endings import end_well
from lms.storage.files import draft_of

def run():
    with draft_of(Path({str(tmp_path)!r}) / "file") as draft:
        draft.write_text("half")
        os.kill(os.getpid(), signal.{number})
        draft.write_text("all")

say = lambda text: print(text, file=sys.stderr)
raise SystemExit(end_well(run, say, advice=lambda: "Rest."))
"""
    done = python("-c", program)
    assert done.returncode == code
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_has_no_room_is_named_and_not_left_half_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        code, said = ended(lambda: write_text(path, "x" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert said.startswith(f"Error: could not use `{path}`: File t")
    assert list(tmp_path.iterdir()) == []
