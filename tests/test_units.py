"""Sizes: what a person may write, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.units import GIB, KIB, MIB, TIB, format_bytes, parse_size

SIZES = st.integers(min_value=1, max_value=2**63 - 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1024B", 1024),
        ("67108864", 64 * MIB),
        ("1B", 1),
        ("3 b", 3),
        ("1.5GiB", 1_610_612_736),
        ("96MiB", 96 * MIB),
        ("96 MB", 96_000_000),
        (" 96\tMiB ", 96 * MIB),
        ("2K", 2 * KIB),
        ("2m", 2 * MIB),
        ("2G", 2 * GIB),
        ("2T", 2 * TIB),
        ("2kb", 2000),
        ("2 GB", 2 * 10**9),
        ("2TB", 2 * 10**12),
        ("0.5KiB", 512),
        ("1.0009765625 KiB", 1025),
        ("0.3 KB", 300),
    ],
)
def test_a_text_is_read_with_its_unit(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("size", [1024, np.int32(1024), np.uint64(1024)])
def test_a_whole_number_is_bytes_and_becomes_a_plain_int(size: int) -> None:
    parsed = parse_size(size)
    assert parsed == 1024
    assert type(parsed) is int


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "lots", "GiB", "1.5", "1.5B", "1,5GiB", "1e9", "nan", "inf"),
        *("-1GiB", "1 GiB/s", "1 PiB", "0x10", "1 2 GiB", ".5GiB", "1.GiB", "٣ GiB"),
        "9" * 5000,
    ],
)
def test_a_text_that_is_no_size_is_refused_by_name_with_the_units(text: str) -> None:
    with pytest.raises(ValueError, match="`budget` must be a size") as caught:
        parse_size(text, name="budget")
    assert f"got {text!r}. Write a number and a unit" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, "0B", "0.0GiB", "0.0001KiB", np.int64(-5)])
def test_less_than_one_byte_is_refused(size: str | int) -> None:
    with pytest.raises(ValueError, match="`size` must be at least 1 byte, got"):
        parse_size(size)


@pytest.mark.parametrize(
    "size", [True, np.True_, 1.5, float("nan"), np.float32(2), None, b"1GiB", [1]]
)
def test_what_is_neither_text_nor_whole_is_a_type_error(size: object) -> None:
    with pytest.raises(TypeError, match="`size` must be text such as"):
        parse_size(size)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_610_612_736, "1.50 GiB"),
        (MIB - 1, "1.00 MiB"),
        (5000 * TIB, "5000.00 TiB"),
        (-96 * MIB, "-96.00 MiB"),
        (np.int64(2048), "2.00 KiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_a_small_number_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got '24'\. Write '24GiB', or '24B'"):
        parse_size("24", name="budget")


@given(SIZES)
def test_plain_digits_are_read_back_exactly(count: int) -> None:
    assert parse_size(f"{count}B") == count


@given(SIZES)
def test_a_written_size_is_read_back_to_the_last_digit_shown(count: int) -> None:
    written = format_bytes(count)
    assert abs(parse_size(written) - count) <= 0.005 * count + 1
    assert format_bytes(parse_size(written)) == written


@given(st.integers(0, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_a_hundredth_of_a_unit_is_never_lost_to_rounding(hundredths, unit) -> None:
    scale = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    text = f"{hundredths // 100}.{hundredths % 100:02d}{unit}"
    if hundredths * scale < 100:
        with pytest.raises(ValueError, match="at least 1 byte"):
            parse_size(text)
    else:
        assert parse_size(text) == hundredths * scale // 100
