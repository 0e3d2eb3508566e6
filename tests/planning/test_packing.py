"""Packings of chunks: worked out by hand, then laws on drawn live intervals."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.planning import addresses
from lms.planning.addresses import Packed, most_at_once, pack
from tests.strategies import examples

# A chunk is (bytes, start, end).
Chunks = list[tuple[int, int, int]]

SPACIOUS = 1 << 62  # bytes of room for any packing


def packed(chunks: Chunks, room: int = 0, tries: int = 20) -> Packed:
    found = pack(*columns(chunks), room or SPACIOUS, tries=tries)
    assert found is not None
    return found


def columns(chunks: Chunks) -> tuple[list[int], list[int], list[int]]:
    sizes, starts, ends = ([chunk[k] for chunk in chunks] for k in range(3))
    return sizes, starts, ends


def bound(chunks: Chunks) -> int:
    return most_at_once(*columns(chunks))


@st.composite
def drawn(draw: st.DrawFn, most: int = 30) -> Chunks:
    chunk = st.tuples(st.integers(1, 9), st.integers(0, 40), st.integers(1, 12))
    found = draw(st.lists(chunk, max_size=most))
    return [(256 * size, start, start + life) for size, start, life in found]


def least_height(chunks: Chunks) -> int:
    """Return the least height of first fit in all orders, which is the optimum."""
    heights: list[int] = []
    for order in permutations(chunks):
        placed: list[tuple[int, int, int, int]] = []
        for size, start, end in order:
            at = 0
            for low, high, since, until in sorted(placed):
                if since < end and until > start and low - at < size:
                    at = max(at, high)
                elif since < end and until > start:
                    break
            placed.append((at, at + size, start, end))
        heights.append(max(high for _, high, _, _ in placed))
    return min(heights)


def first_fit(chunks: Chunks, gap: int) -> list[int]:
    """Place chunks by size; look at all placed chunks until none moves the next."""
    placed: list[tuple[int, int, int, int]] = []
    found = [0] * len(chunks)
    for i in sorted(range(len(chunks)), key=lambda i: -chunks[i][0]):
        size, start, end = chunks[i]
        at, before = 0, -1
        while at != before:
            before = at
            for low, high, since, until in sorted(placed):
                if since >= end or until <= start or high + gap <= at:
                    continue
                if low >= at + size + gap:
                    break
                if since == start:
                    at = high + gap
                elif low != at + size and high != at:
                    at = high + gap if high < at else high
        found[i] = at
        placed.append((at, at + size, start, end))
    return found


def test_nothing_takes_no_room() -> None:
    assert pack([], [], [], room=0) == Packed(height=0, offsets=())
    assert most_at_once([], [], []) == 0


def test_a_chunk_takes_the_place_of_one_that_ended() -> None:
    # 768 lives first, then 512 and 256 lie where 768 was.
    assert packed([(768, 0, 2), (512, 2, 4), (256, 2, 4)]).offsets == (0, 0, 512)


def test_large_chunks_come_first() -> None:
    # In order of time they would lie at 0, 256 and 768: 1280.
    found = packed([(256, 0, 2), (512, 1, 4), (512, 3, 6)], tries=1)
    assert found == Packed(height=1024, offsets=(512, 0, 512))


# By size, both chunks of 768 lie at 0, and 512 on the first. Then 256, which meets 512
# and the second 768, has no place below 1280: 1536. All fit in 1280 if 256 comes first.
WHEEL = [(768, 0, 2), (768, 5, 7), (512, 0, 4), (256, 3, 6)]


def test_the_squeaky_wheel_finds_what_no_first_order_does() -> None:
    assert pack(*columns(WHEEL), bound(WHEEL), tries=2) is None
    assert packed(WHEEL, bound(WHEEL)).height == bound(WHEEL)


def test_a_packing_within_the_room_ends_the_search() -> None:
    first = packed(WHEEL, tries=1)
    assert packed(WHEEL, room=first.height, tries=50) == first


def test_where_more_bytes_live_than_there_is_room_nothing_is_found() -> None:
    assert pack(*columns(WHEEL), bound(WHEEL) - 256) is None


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="zip"):
        pack([256, 256], [0], [1, 1], room=512)


@examples(100)
@given(chunks=drawn(), tries=st.integers(1, 30))
def test_no_two_chunks_that_live_at_once_overlap(chunks: Chunks, tries: int) -> None:
    found = packed(chunks, tries=tries)
    placed = list(zip(chunks, found.offsets, strict=True))
    for ((size, start, end), at), ((other, since, until), beside) in combinations(
        placed, 2
    ):
        if since < end and start < until:
            assert at + size <= beside or beside + other <= at
    tops = [at + size for (size, _, _), at in placed]
    assert found.height == max(tops, default=0) >= bound(chunks)
    assert all(at >= 0 and at % 256 == 0 for at in found.offsets)


@examples(100)
@given(chunks=drawn(), more=st.integers(0, 3))
def test_more_tries_find_what_fewer_do(chunks: Chunks, more: int) -> None:
    room = bound(chunks) + 256 * more
    tried = [pack(*columns(chunks), room, tries=tries) for tries in (1, 2, 8, 30)]
    found = [each for each in tried if each is not None]
    assert found == tried[len(tried) - len(found) :]
    assert all(each == found[0] and each.height <= room for each in found)


@examples(100)
@given(chunks=drawn(), shift=st.integers(-9, 9), scale=st.integers(1, 5))
def test_only_the_order_of_times_matters_to_what_lives_at_once(
    chunks: Chunks, shift: int, scale: int
) -> None:
    moved = [(n, scale * a + shift, scale * b + shift) for n, a, b in chunks]
    assert bound(moved) == bound(chunks)
    assert packed(moved, tries=1) == packed(chunks, tries=1)


@pytest.mark.parametrize("many", [0, 1 << 30])
@examples(200)
@given(chunks=drawn(most=60), gap=st.sampled_from([0, 256, 512, 1024]))
def test_first_fit_places_each_chunk_where_a_plain_one_does(
    many: int, chunks: Chunks, gap: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "_MANY", many)
        found = pack(*columns(chunks), SPACIOUS, tries=1, gap=gap)
    assert found is not None
    assert list(found.offsets) == first_fit(chunks, gap)


@examples(50)
@given(chunks=drawn(most=40), copies=st.integers(2, 4))
def test_equal_chunks_of_one_time_lie_on_top_of_each_other(
    chunks: Chunks, copies: int
) -> None:
    same = [(256, 0, 3)] * copies
    assert packed(same).height == 256 * copies
    long = [(size, start, start + 1) for size, start, _ in chunks]
    assert packed(long).height == bound(long)  # who lives for one moment never waits


@examples(30)
@given(chunks=drawn(most=5).filter(bool))
def test_few_chunks_are_packed_as_low_as_any_order_does(chunks: Chunks) -> None:
    least = least_height(chunks)
    assert packed(chunks, least, tries=300).height == least
