"""A card finds what nothing orders, in the first run, though no number is wrong."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lms.emulation import emulate
from lms.emulation.races import (
    FOUND,
    Access,
    Race,
    found_races,
    program_of,
    race_variables,
    races_in,
    report,
)
from lms.errors import LMSError
from tests.emulation.race_trials import ZOO
from tests.programs import python
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf  # where no card can be compiled, these are skipped too

CALLS = "tests.emulation.driver_calls"


def called(program: str, path: Path, late: int | None = None) -> str:
    """Run a program of `driver_calls` on a card; return what the program wrote."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LMS_CARD_")}
    made = emulate.environment("32MiB", inherited=clean) | race_variables(path, late)
    return python("-m", CALLS, program, check=True, env=made).stdout


@pytest.mark.parametrize(
    ("orders", "count"),
    [
        ("nothing", 1),
        ("an_event", 0),
        ("an_event_recorded_too_early", 1),
        ("events_through_a_third_stream", 0),
        ("the_host", 0),
        ("the_stream_s_end", 0),
        ("the_card_s_end", 0),
        ("nothing_as_both_only_read", 0),
        ("nothing_on_bytes_side_by_side", 0),
        ("nothing_on_one_byte", 1),
        ("nothing_but_new_memory", 0),
        ("a_function_of_the_host", 0),
        ("a_function_of_the_host_queued_too_early", 1),
        ("the_legacy_stream_between_blocking_ones", 0),
        ("the_legacy_stream_s_end", 0),
        ("an_event_of_the_legacy_stream", 0),
        ("nothing_as_one_stream_does_not_block", 1),
        ("nothing_as_both_streams_only_block", 1),
        ("the_legacy_stream_after_a_thread_s_own", 0),
        ("nothing_after_a_thread_s_own_stream", 1),
        ("nothing_between_two_threads_own_streams", 1),
        ("a_copy_that_the_host_waits_for", 0),
        ("nothing_before_a_copy_without_a_stream", 1),
        ("a_copy_of_pinned_memory_without_a_stream", 0),
        ("nothing_as_pageable_memory_was_only_read", 1),
        ("nothing_after_a_copy_within_the_card", 1),
        ("nothing_after_a_memset_without_a_stream", 1),
    ],
)
def test_two_accesses_race_if_nothing_orders_them(
    orders: str, count: int, tmp_path: Path
) -> None:
    called(orders, tmp_path / "races")
    assert len(races_in(tmp_path / "races")) == count


def test_a_race_names_both_accesses(tmp_path: Path) -> None:
    called("nothing", tmp_path / "races")
    (race,) = races_in(tmp_path / "races")
    first, second = race.first, race.second
    assert (first.kind, first.writes, first.size) == ("memset", True, 4096)
    assert (second.kind, second.writes) == ("D2H", False)
    assert race.second.stream == "device-to-host stream of card 0"
    assert "memset writes 4096 bytes" in report([race])


def test_a_late_copy_is_made_when_something_waits_for_it(tmp_path: Path) -> None:
    program = "an_event_and_late_copies"
    assert called(program, tmp_path / "races").split() == ["7", "7"]
    assert called(program, tmp_path / "races", late=0).split() == ["0", "7"]
    assert races_in(tmp_path / "races") == []


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [("nothing", FOUND, "1 race:"), ("an_event", 0, "No race was found.")],
)
def test_a_program_with_a_race_ends_with_a_code_of_its_own(
    program: str, code: int, said: str
) -> None:
    words = ("emulate", "--memory", "32MiB", "--races", "--", sys.executable)
    ended = python("-m", "lms", *words, "-m", CALLS, program)
    assert ended.returncode == code
    assert said in ended.stderr


def test_a_program_that_limits_itself_may_ask_for_races() -> None:
    code = (
        "import lms; lms.emulate.limit_memory('32MiB', races=True)\n"
        "lms.emulate.limit_memory('32MiB', races=True)\n"  # again, as a child does
        "from lms.emulation.races import found_races, report\n"
        "from tests.emulation.driver_calls import run\n"
        "for name in ('an_event', 'nothing'): run(name); print(report(found_races()))\n"
    )
    said = python("-c", code, check=True).stdout.splitlines()
    assert said[:2] == ["No race was found.", "1 race:"]
    assert "memset writes 4096 bytes" in said[2]


def test_where_no_card_looks_for_races_none_can_be_told() -> None:
    with pytest.raises(LMSError, match="`found_races` must be called where a card"):
        found_races()


def test_without_races_a_program_ends_by_its_own_code() -> None:
    words = ("emulate", "--memory", "32MiB", "--races", "--", sys.executable)
    assert python("-m", "lms", *words, "-c", "raise SystemExit(3)").returncode == 3
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert python("-m", "lms", *words, "-c", killed).returncode == 128 + 15


def test_many_races_are_counted_and_the_first_ones_shown() -> None:
    known = {"kind": "kernel", "op": "add", "tensor": "x", "size": 8, "stream": "one"}
    access = Access(writes=True, **known)
    said = report([Race(first=access, second=access)] * 22)
    assert said.startswith("22 races:\n  1. kernel 'add' writes 8 bytes of 'x' (one)")
    assert said.endswith("and 2 more")


def moved(worker: Worker, known: Mapping[str, str]) -> Mapping[str, Any]:
    trial = "tests.emulation.race_trials:moved"
    return worker.ask(trial, memory="64MiB", environ=known)


@pytest.fixture(scope="module")
def clean(
    worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Any]:
    """A small step, moved to the host and back without a fault."""
    path = tmp_path_factory.mktemp("races") / "races"
    found = moved(worker, race_variables(path))
    assert races_in(path) == []
    return found


def kinds_named(
    removed: str, worker: Worker, path: Path, clean: Mapping[str, Any]
) -> list[set[str]]:
    """Kinds of both accesses of each race that names the op whose wait is removed."""
    known = race_variables(path) | {"LMS_CARD_FAULT": removed}
    assert moved(worker, known) == clean, "the numbers are right all the same"
    op = removed.partition(":")[2]
    named = [race for race in races_in(path) if op in (race.first.op, race.second.op)]
    return [{race.first.kind, race.second.kind} for race in named]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "copies", "kinds"),
    [
        ("wait", "out", {"kernel", "D2H"}),
        ("early", "into", {"kernel", "H2D"}),
        ("unheard", "into", {"kernel", "H2D"}),
    ],
)
def test_a_wait_that_is_removed_is_found_though_the_numbers_are_right(
    wait: str,
    copies: str,
    kinds: set[str],
    clean: Mapping[str, Any],
    worker: Worker,
    tmp_path: Path,
) -> None:
    removed = f"{wait}:{clean[copies][0]}"
    assert kinds in kinds_named(removed, worker, tmp_path / "races", clean)


@pytest.mark.long
def test_each_wait_that_a_step_needs_is_named_in_one_run_without_it(
    clean: Mapping[str, Any], worker: Worker, tmp_path: Path
) -> None:
    """The host's wait for a copy out is not needed where a later copy's is there."""
    removed = [f"wait:{copy}" for copy in (*clean["out"], *clean["into"])]
    removed += [f"{w}:{copy}" for w in ("early", "unheard") for copy in clean["into"]]
    assert len(removed) >= 20
    unnamed = [
        fault
        for number, fault in enumerate(removed)
        if not kinds_named(fault, worker, tmp_path / str(number), clean)
    ]
    assert unnamed == []


# Models of `make test`, trained for few steps; `make test-all` trains all for 50.
SHORT = ("a GAN", "an autoencoder", "an embedding")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 4) for name in SHORT),
        *(pytest.param(name, 50, marks=pytest.mark.long) for name in ZOO),
    ],
)
def test_neither_a_plain_nor_a_planned_training_has_a_race(
    name: str, steps: int, worker: Worker, tmp_path: Path
) -> None:
    trial = worker.ask(
        "tests.emulation.race_trials:plain_and_planned",
        memory="1GiB",
        card={"cards": ZOO[name].cards},
        environ=race_variables(tmp_path / "races"),
        name=name,
        steps=steps,
    )
    races = races_in(tmp_path / "races")
    assert program_of(races) == [], report(races)
    assert trial["steps"] == steps
    assert trial["moved"] > 0, "no tensor was moved: the training says nothing"
    assert trial["different"] == []


@pytest.mark.slow
def test_copies_may_be_late_where_all_waits_are_there(
    clean: Mapping[str, Any], worker: Worker
) -> None:
    for seed in (0, 3):
        assert moved(worker, race_variables(late=seed)) == clean
    fault = {"LMS_CARD_FAULT": f"unheard:{clean['into'][0]}"}
    wrong = moved(worker, race_variables(late=0) | fault)
    assert wrong["digest"] != clean["digest"]


def test_a_seed_is_no_negative_number() -> None:
    with pytest.raises(ValueError, match="`late` must be a seed of at least 0, got -1"):
        race_variables(late=-1)
