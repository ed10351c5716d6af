"""A run's allocations as a list, recorded once and replayed on a card of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tft_exp.memory.allocator import Block, CachingAllocator, OutOfCapacity, Shortage, round_request


class Event(Enum):
    """What is recorded, and what its number means."""

    allocate = "bytes asked for"
    release = "the number of the allocation that ends"
    flush = "nothing"
    interval = "the number of the interval that begins"


Trace = list[tuple[Event, int]]


class TracingAllocator:
    """Stands where CachingAllocator does and never runs out: it remembers what was asked of it, and counts live bytes."""

    def __init__(self) -> None:
        self.trace: Trace = []
        self.intervals: list[str] = []
        self.capacity = 1 << 62
        self.allocated = self.peak_allocated = 0
        self.reserved = self.peak_reserved = 0  # unknown before a replay
        self._allocations = 0

    def allocate(self, size: int) -> Block | None:
        """A block that stands for the request, its address the request's number; None for 0 bytes."""
        if size == 0:
            return None
        self.trace.append((Event.allocate, size))
        block = Block(self._allocations, round_request(size), small=False)
        self._allocations += 1
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        if block is not None:
            self.trace.append((Event.release, block.address))
            self.allocated -= block.size

    def flush(self) -> None:
        self.trace.append((Event.flush, 0))

    def reset_peaks(self) -> None:
        self.peak_allocated = self.allocated

    def begin(self, interval: str) -> None:
        """From here on peaks are those of another interval. Names may come again."""
        self.trace.append((Event.interval, len(self.intervals)))
        self.intervals.append(interval)


@dataclass(frozen=True)
class Peak:
    """The allocator's highest figures in an interval, bytes."""

    interval: str
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Replay:
    """What a card made of a trace. Where memory ran out `shortage` has the figures, and the last peak is of that interval."""

    peaks: tuple[Peak, ...]
    shortage: Shortage | None


def replay(trace: Trace, intervals: Sequence[str], capacity: int, *, expandable: bool = False) -> Replay:
    """The trace on a card on which tensors may take `capacity` bytes. It begins with an interval."""
    allocator = CachingAllocator(capacity, expandable=expandable)
    blocks: list[Block | None] = []
    peaks: list[Peak] = []
    current: str | None = None

    def close() -> None:
        if current is not None:
            peaks.append(Peak(current, allocator.peak_allocated, allocator.peak_reserved))

    for event, number in trace:
        if event is Event.allocate:
            try:
                blocks.append(allocator.allocate(number))
            except OutOfCapacity as full:
                close()
                return Replay(tuple(peaks), full.shortage)
        elif event is Event.release:
            allocator.release(blocks[number])
        elif event is Event.flush:
            allocator.flush()
        else:
            close()
            current = intervals[number]
            allocator.reset_peaks()
    close()
    return Replay(tuple(peaks), None)
