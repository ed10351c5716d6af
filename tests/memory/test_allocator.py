"""The model of the CUDA caching allocator: its rules one by one, and what must hold for any sequence of requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tft_exp.memory.allocator import Block, CachingAllocator, OutOfCapacity, round_request, segment_size

MIB = 1 << 20


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)])
def test_requests_are_rounded_to_512(size: int, rounded: int) -> None:
    assert round_request(size) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12), (33 * MIB, 34)],
)
def test_segments_by_size_of_request(size: int, segment: int) -> None:
    assert segment_size(size) == segment * MIB


def test_small_requests_share_a_segment_and_large_ones_do_not_take_from_it() -> None:
    allocator = CachingAllocator(1000 * MIB)
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert (allocator.allocated, allocator.reserved) == (2 * MIB, 2 * MIB)
    allocator.allocate(2 * MIB)
    assert (allocator.allocated, allocator.reserved) == (4 * MIB, 22 * MIB)
    allocator.allocate(5 * MIB)
    assert allocator.reserved == 22 * MIB


def test_a_remainder_of_a_large_block_up_to_a_mebibyte_is_not_cut_off() -> None:
    allocator = CachingAllocator(1000 * MIB)
    allocator.allocate(13 * MIB + 512)
    assert (allocator.allocated, allocator.reserved) == (14 * MIB, 14 * MIB)


def test_the_best_fitting_block_is_taken() -> None:
    allocator = CachingAllocator(1000 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (40, 20, 30)]
    for block in blocks:
        allocator.release(block)
    assert allocator.allocate(19 * MIB) is blocks[1]
    assert allocator.allocated == 20 * MIB  # what is left of 20 is not worth cutting off
    assert allocator.largest_free == 40 * MIB


def test_neighbours_merge_again() -> None:
    allocator = CachingAllocator(1000 * MIB)
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for index in (1, 3, 0, 2):
        allocator.release(parts[index])
    assert allocator.largest_free == 20 * MIB
    allocator.allocate(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_cache_is_flushed_before_giving_up() -> None:
    allocator = CachingAllocator(100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.reserved, allocator.flushes) == (80 * MIB, 1)


def test_fragmentation_can_refuse_what_would_fit() -> None:
    """Two live slivers pin two segments: 38 MiB lie free, and none of it can be given back or serve 30 MiB."""
    allocator = CachingAllocator(40 * MIB)
    pinned = [allocator.allocate(2 * MIB), allocator.allocate(18 * MIB), allocator.allocate(2 * MIB), allocator.allocate(18 * MIB)]
    allocator.release(pinned[1])
    allocator.release(pinned[3])
    with pytest.raises(OutOfCapacity) as caught:
        allocator.allocate(30 * MIB)
    assert caught.value.shortage.reserved - caught.value.shortage.allocated == 36 * MIB
    assert caught.value.shortage.largest_free == 18 * MIB
    expandable = CachingAllocator(40 * MIB, expandable=True)
    again = [expandable.allocate(size * MIB) for size in (2, 18, 2, 18)]
    expandable.release(again[1])
    expandable.release(again[3])
    assert expandable.allocate(16 * MIB) is not None


SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.integers(0, 60 * MIB))
STEPS = st.lists(st.tuples(st.sampled_from(["allocate", "allocate", "release", "flush"]), SIZES, st.integers(0, 1 << 30)), max_size=120)


def play(steps: list[tuple[str, int, int]], expandable: bool) -> tuple[CachingAllocator, list[Block], list[tuple[int, int, int]]]:
    allocator, live, trace = CachingAllocator(300 * MIB, expandable=expandable), [], []
    for action, size, pick in steps:
        if action == "allocate":
            try:
                block = allocator.allocate(size)
            except OutOfCapacity:
                # Right to give up only where not even a new segment fits (an expandable one can grow by less).
                assert expandable or allocator.reserved + segment_size(round_request(size)) > 300 * MIB
                block = None
            if block is not None:
                live.append(block)
        elif action == "release" and live:
            allocator.release(live.pop(pick % len(live)))
        elif action == "flush":
            allocator.flush()
        trace.append((allocator.allocated, allocator.reserved, allocator.largest_free))
        spans = sorted((block.address, block.address + block.size) for block in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "live blocks overlap"
        assert allocator.allocated == sum(block.size for block in live)
        assert allocator.allocated <= allocator.reserved <= 300 * MIB
        assert allocator.peak_allocated >= allocator.allocated
        assert allocator.peak_reserved >= allocator.reserved
    return allocator, live, trace


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, expandable=st.booleans())
def test_what_holds_for_any_sequence(steps: list[tuple[str, int, int]], expandable: bool) -> None:
    allocator, live, trace = play(steps, expandable)
    assert play(steps, expandable)[2] == trace, "the same requests give the same figures"
    for block in live:
        allocator.release(block)
    assert allocator.allocated == 0
    allocator.flush()
    assert allocator.reserved == 0
