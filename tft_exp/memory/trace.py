"""A run's allocations as a list, recorded once and replayed on a card of any size."""

from __future__ import annotations

from collections import deque
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
    """The allocator's highest figures in an interval, by its number, bytes."""

    interval: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Replay:
    """What a card made of a trace. Where memory ran out `shortage` has the figures, and the last peak is of that interval."""

    peaks: tuple[Peak, ...]
    shortage: Shortage | None


def unroll(trace: Trace, begin: int, end: int, times: int) -> Trace:
    """The trace with its events from `begin` to `end` repeated so many more times.

    What a repetition releases of before is what the one before it left over of the same size, as a step lets go of the loss of
    the step before; what nobody let go of lives on.
    """
    numbers = [number for event, number in trace[:begin] if event is Event.allocate]
    first, segment = len(numbers), trace[begin:end]
    born = [number for event, number in segment if event is Event.allocate]  # bytes, in the order of the allocations' numbers
    released = [number for event, number in segment if event is Event.release]
    left = sorted(set(range(first, first + len(born))) - set(released))
    waiting: dict[int, deque[int]] = {}
    for number in left:
        waiting.setdefault(born[number - first], deque()).append(number)
    successor: dict[int, int] = {}  # of an allocation from before that the segment releases: what takes its place for the next
    for number in released:
        if number < first and (heirs := waiting.get(numbers[number])):
            successor[number] = heirs.popleft()
    longer, count = list(trace[:end]), first + len(born)
    current = {number: number for number in left}  # where an allocation that the segment leaves over is now
    for _ in range(times):
        mine: dict[int, int] = {}
        before, number = dict(current), first
        for event, value in segment:
            if event is Event.allocate:
                mine[number], number, count = count, number + 1, count + 1
                longer.append((event, value))
            elif event is not Event.release:
                longer.append((event, value))
            elif value in mine:
                longer.append((event, mine[value]))
            elif value in successor:
                longer.append((event, before[successor[value]]))
        current = {number: mine[number] for number in left}
    shift = times * len(born)
    for event, value in trace[end:]:
        if event is Event.release:
            value = current.get(value, value if value < first + len(born) else value + shift)
        longer.append((event, value))
    return longer


def replay(trace: Trace, capacity: int, *, expandable: bool = False) -> Replay:
    """The trace on a card on which tensors may take `capacity` bytes. It begins with an interval."""
    allocator = CachingAllocator(capacity, expandable=expandable)
    blocks: list[Block | None] = []
    peaks: list[Peak] = []
    current: int | None = None

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
            current = number
            allocator.reset_peaks()
    close()
    return Replay(tuple(peaks), None)
