"""A run's allocations, recorded, replayed and prolonged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tft_exp.memory.allocator import CachingAllocator, OutOfCapacity
from tft_exp.memory.trace import Event, Trace, TracingAllocator, replay, unroll

MIB = 2**20
SIZES = st.integers(1, 30 * MIB)


@given(st.lists(st.tuples(SIZES, st.integers(0, 5)), min_size=1, max_size=60), st.integers(20, 300))
def test_a_replay_is_what_the_allocator_does(program: list[tuple[int, int]], capacity_mib: int) -> None:
    """Each step allocates, and lets go of an older block or clears the cache."""
    tracing, direct = TracingAllocator(), CachingAllocator(capacity_mib * MIB)
    tracing.begin("all")
    traced, blocks, failed = [], [], False
    for size, choice in program:
        traced.append(tracing.allocate(size))
        try:
            blocks.append(None if failed else direct.allocate(size))
        except OutOfCapacity:
            failed = True
            blocks.append(None)
        if choice == 5:
            tracing.flush()
            if not failed:
                direct.flush()
        elif choice < len(traced) and traced[choice] is not None:
            tracing.release(traced[choice])
            if not failed:
                direct.release(blocks[choice])
            traced[choice] = blocks[choice] = None
    replayed = replay(tracing.trace, capacity_mib * MIB)
    assert (replayed.shortage is not None) == failed
    peak = replayed.peaks[0]
    assert (peak.allocated, peak.reserved) == (direct.peak_allocated, direct.peak_reserved)


def test_peaks_are_those_of_their_interval() -> None:
    allocator = TracingAllocator()
    allocator.begin("first")
    held = allocator.allocate(10 * MIB)
    allocator.release(allocator.allocate(40 * MIB))
    allocator.begin("second")
    allocator.release(held)
    allocator.begin("third")
    peaks = replay(allocator.trace, 1 << 40).peaks
    assert [(allocator.intervals[peak.interval], peak.allocated // MIB, peak.reserved // MIB) for peak in peaks] == [
        ("first", 50, 50),
        ("second", 10, 50),
        ("third", 0, 50),
    ]


def looped(head: list[int], carried: list[int], passing: list[int], times: int) -> tuple[Trace, list[int]]:
    """A program that, in every turn, lets go of what the turn before left (`carried`), and of what passes; then ends by letting
    all of it go. Returns its trace, and the places where turns end."""
    allocator, ends = TracingAllocator(), []
    allocator.begin("head")
    kept = [allocator.allocate(size) for size in head]
    left = [allocator.allocate(size) for size in carried]
    for _ in range(times):
        passed = [allocator.allocate(size) for size in passing]
        fresh = [allocator.allocate(size) for size in carried]
        for block in [*passed, *left]:
            allocator.release(block)
        left = fresh
        allocator.flush()
        ends.append(len(allocator.trace))
    last = allocator.allocate(77)
    for block in [*left, *kept, last]:
        allocator.release(block)
    return allocator.trace, ends


@given(st.lists(SIZES, max_size=4), st.lists(SIZES, max_size=4, unique=True), st.lists(SIZES, max_size=4), st.integers(0, 4))
def test_a_prolonged_trace_is_that_of_more_turns(head: list[int], carried: list[int], passing: list[int], more: int) -> None:
    short, ends = looped(head, carried, passing, 2)
    assert unroll(short, ends[0], ends[1], more) == looped(head, carried, passing, 2 + more)[0]


def test_what_nobody_lets_go_of_in_a_turn_lives_on() -> None:
    allocator = TracingAllocator()
    allocator.begin("all")
    begin = len(allocator.trace)
    allocator.allocate(3 * MIB)
    end = len(allocator.trace)
    longer = unroll(allocator.trace, begin, end, 4)
    assert [event for event, _ in longer].count(Event.allocate) == 5
    assert replay(longer, 1 << 40).peaks[0].allocated == 15 * MIB
