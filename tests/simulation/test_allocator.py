"""The allocator's model: by hand, and laws over random requests."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.simulation.allocator import (
    BestFitAllocator,
    ByteCounter,
    SmallPool,
    rounded_up,
)
from tests.strategies import examples


def test_a_request_is_rounded_up_to_256_bytes() -> None:
    allocator = BestFitAllocator(4096)
    allocator.allocate(1)
    assert allocator.in_use == 256
    allocator.allocate(257)
    assert allocator.in_use == 256 + 512


def test_the_smallest_free_chunk_that_is_large_enough_is_taken() -> None:
    allocator = BestFitAllocator(8192)
    large, _, small, _ = (allocator.allocate(size) for size in (1024, 256, 512, 256))
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(512) == small


def test_of_equal_chunks_the_one_at_the_lowest_address_is_taken() -> None:
    allocator = BestFitAllocator(8192)
    first, _, second, _ = (allocator.allocate(512) for _ in range(4))
    allocator.free(second)
    allocator.free(first)
    assert allocator.allocate(512) == first


def test_what_is_left_of_a_chunk_is_a_chunk_of_its_own() -> None:
    allocator = BestFitAllocator(1024)
    assert (allocator.allocate(768), allocator.in_use) == (0, 768)
    assert (allocator.allocate(256), allocator.in_use) == (768, 1024)


def test_a_full_region_raises_memory_error() -> None:
    allocator = BestFitAllocator(512)
    allocator.allocate(512)
    with pytest.raises(MemoryError, match="no free chunk of 256 bytes"):
        allocator.allocate(1)


def test_a_nook_has_room_for_its_chunks_and_spacers_are_larger_than_all() -> None:
    pool = SmallPool(sizes=(512, 256), below=1024)  # and two chunks in use
    assert pool.bytes == 1280
    assert SmallPool(sizes=(256,), below=512).spacer == 512
    assert SmallPool(sizes=(512,), below=300).spacer == 768  # 300 bytes take 512, too
    assert [rounded_up(size) for size in (4, 257)] == [256, 512]


def test_a_counter_of_bytes_knows_no_fragments() -> None:
    memory = ByteCounter(1024)
    _, middle, _ = (memory.allocate(256) for _ in range(3))
    memory.free(middle)
    memory.allocate(512)  # a best fit would find two holes of 256 bytes
    assert memory.in_use == 1024


def test_fragments_that_only_together_suffice_do_not() -> None:
    allocator = BestFitAllocator(1024)
    chunks = [allocator.allocate(256) for _ in range(4)]
    allocator.free(chunks[0])
    allocator.free(chunks[2])
    with pytest.raises(MemoryError):
        allocator.allocate(512)


# Positive: bytes to allocate; otherwise the number of the chunk to free.
_ACTIONS = st.lists(st.one_of(st.integers(1, 4000), st.integers(-20, 0)), max_size=60)


@given(_ACTIONS)
@examples(100)
def test_chunks_never_overlap_and_in_use_is_their_sum(actions: list[int]) -> None:
    capacity = 64 * 256
    allocator = BestFitAllocator(capacity)
    used: dict[int, int] = {}
    for action in actions:
        if action <= 0 and used:
            address = sorted(used)[-action % len(used)]
            allocator.free(address)
            del used[address]
        if action > 0:
            try:
                address = allocator.allocate(action)
            except MemoryError:
                continue
            used[address] = allocator.in_use - sum(used.values())
            assert used[address] >= action
        ends = sorted((start, start + size) for start, size in used.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert all(start >= 0 and end <= capacity for start, end in ends)
        assert allocator.in_use == sum(used.values()) <= allocator.peak <= capacity


@given(st.lists(st.integers(1, 4000), max_size=30), st.randoms(use_true_random=False))
@examples(50)
def test_freeing_everything_gives_back_one_chunk(
    sizes: list[int], random: Random
) -> None:
    capacity = 512 * 256
    allocator = BestFitAllocator(capacity)
    chunks = [allocator.allocate(size) for size in sizes]
    random.shuffle(chunks)
    for chunk in chunks:
        allocator.free(chunk)
    assert allocator.allocate(capacity) == 0
    assert allocator.in_use == capacity


def test_small_tensors_have_chunks_of_their_own_in_a_nook() -> None:
    small_pool = SmallPool(sizes=(512, 256, 256), below=1024)
    allocator = BestFitAllocator(8192, small_pool)
    assert allocator.in_use == small_pool.bytes == 512 + 2 * 256 + 3 * 256
    large = allocator.allocate(8192 - small_pool.bytes)  # all that is left
    small = [allocator.allocate(200) for _ in range(3)]
    assert allocator.in_use == 8192
    for address in (*small, large):
        allocator.free(address)
    assert allocator.in_use == small_pool.bytes


def test_larger_chunks_of_a_nook_are_there_for_whoever_comes() -> None:
    allocator = BestFitAllocator(16384, SmallPool(sizes=(2048,), below=1024))
    assert allocator.in_use == 256  # what keeps the chunk apart
    first, second = allocator.allocate(2048), allocator.allocate(2048)
    assert (first, second) == (0, 2048 + 256)


def test_a_nook_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(MemoryError):
        BestFitAllocator(1024, SmallPool(sizes=(1024,), below=4096))


def test_a_nook_lies_in_a_hole_that_holds_all_of_it() -> None:
    small_pool = SmallPool(sizes=(768, 256), below=512, holes=(1024, 2048))
    allocator = BestFitAllocator(8192)
    allocator.keep_pool(small_pool)
    # Two walls of holes, two of chunks, and 256 for small tensors.
    assert allocator.in_use == 5 * 256
    assert 1280 < allocator.allocate(768) < 3584  # the nook's own chunk
    assert allocator.allocate(768) == 0  # the smaller hole
    assert allocator.allocate(4608) >= 3584


def test_holes_that_are_too_small_for_a_nook_are_left() -> None:
    small_pool = SmallPool(sizes=(1024, 1024), below=512, holes=(1024, 512))
    allocator = BestFitAllocator(8192)
    allocator.keep_pool(small_pool)
    places = [allocator.allocate(1024) for _ in range(3)]
    assert places == [0, 2048, 2048 + 1280]  # walls are between them
    assert allocator.allocate(512) == 1280
