"""The CUDA caching allocator, modelled: what a card would have allocated and reserved for a sequence of requests.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.13 with its default settings, on one stream: requests are rounded,
small and large ones come from pools of their own, segments are split and merged, the best fitting free block is
taken, and before giving up the cache is flushed and the segment asked for again. Sizes are bytes.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

MIN_BLOCK = 512  # kMinBlockSize: every request is a multiple of it
SMALL_REQUEST = 1 << 20  # kSmallSize: largest request of the small pool
SMALL_SEGMENT = 2 << 20  # kSmallBuffer
LARGE_SEGMENT = 20 << 20  # kLargeBuffer: segment of large requests below LARGE_REQUEST
LARGE_REQUEST = 10 << 20  # kMinLargeAlloc
ROUND_LARGE = 2 << 20  # kRoundLarge: segments of larger requests are multiples of it


@dataclass(frozen=True)
class Shortage:
    """The figures of the moment in which a request could not be served, bytes."""

    requested: int
    allocated: int
    reserved: int
    largest_free: int
    capacity: int

    @property
    def is_fragmentation(self) -> bool:
        """Whether the request would have fitted, had all that lives been laid out without gaps."""
        return self.allocated + round_request(self.requested) <= self.capacity


class OutOfCapacity(Exception):
    """No segment can be had for a request, not even after flushing the cache."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(str(shortage))
        self.shortage = shortage


@dataclass(eq=False)
class Block:
    """A piece of a segment; `before` and `after` are its neighbours there."""

    address: int
    size: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def whole_segment(self) -> bool:
        return self.before is None and self.after is None


def round_request(size: int) -> int:
    """What a request takes of a block."""
    return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)


def segment_size(rounded: int) -> int:
    """What is asked of the driver where no free block fits."""
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if rounded < LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE


class CachingAllocator:
    """`allocated` and `reserved` are what torch.cuda.memory_allocated() and memory_reserved() would say.

    With `expandable` each pool is one segment that grows at its end and gives free pages back (expandable_segments).
    """

    def __init__(self, capacity: int, *, expandable: bool = False) -> None:
        self.capacity, self.expandable = capacity, expandable
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.flushes = 0
        self._next_address = 0
        # Free blocks of each pool by (size, address), as the allocator's own comparison orders them.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._tail: dict[bool, Block | None] = {True: None, False: None}

    def allocate(self, size: int) -> Block | None:
        """A block for `size` bytes; None for 0, which takes none. Raises OutOfCapacity."""
        if size == 0:
            return None
        rounded = round_request(size)
        small = rounded <= SMALL_REQUEST
        block = self._best_fit(rounded, small) or self._new_segment(rounded, small)
        if block is None:
            self.flush()
            self.flushes += 1
            block = self._new_segment(rounded, small)
        if block is None:
            raise OutOfCapacity(Shortage(size, self.allocated, self.reserved, self.largest_free, self.capacity))
        self._split(block, rounded)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        """Give a block back to its pool, merged with free neighbours; the segment stays reserved."""
        if block is None:
            return
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._forget(neighbour)
                self._merge(block, neighbour)
        self._keep(block)

    def flush(self) -> None:
        """Give segments without a live block back to the driver (torch.cuda.empty_cache)."""
        for small in (True, False):
            for _, _, block in list(self._free[small]):
                if block.whole_segment or (self.expandable and block.after is None):
                    self._forget(block)
                    if block.before is not None:
                        block.before.after = None
                    if self._tail[small] is block:
                        self._tail[small] = block.before
                    self.reserved -= block.size

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    @property
    def largest_free(self) -> int:
        """The largest request that a free block could serve without a new segment."""
        return max((pool[-1][0] for pool in self._free.values() if pool), default=0)

    def _best_fit(self, rounded: int, small: bool) -> Block | None:
        pool = self._free[small]
        index = bisect.bisect_left(pool, (rounded, -1), key=lambda entry: entry[:2])
        if index == len(pool):
            return None
        block = pool.pop(index)[2]
        block.free = False
        return block

    def _new_segment(self, rounded: int, small: bool) -> Block | None:
        if self.expandable:
            return self._expand(rounded, small)
        size = segment_size(rounded)
        if self.reserved + size > self.capacity:
            return None
        block = Block(self._next_address, size, small)
        self._next_address += size
        self._reserve(size)
        return block

    def _expand(self, rounded: int, small: bool) -> Block | None:
        """Map pages behind the pool's last block, and take the free room at its end along."""
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        tail = self._tail[small]
        room = tail.size if tail is not None and tail.free else 0
        grown = -(-(rounded - room) // page) * page
        if self.reserved + grown > self.capacity:
            return None
        end = tail.address + tail.size if tail is not None else (1 << 60 if small else 1 << 61)
        block = Block(end, grown, small, before=tail)
        if tail is not None:
            tail.after = block
            if tail.free:
                self._forget(tail)
                self._merge(block, tail)
        self._tail[small] = block
        self._reserve(grown)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, block: Block, rounded: int) -> None:
        """Cut what is not needed off a block, where the rest is worth keeping (should_split)."""
        rest = block.size - rounded
        worth = rest >= MIN_BLOCK if block.small or self.expandable else rest > SMALL_REQUEST
        if not worth:
            return
        remainder = Block(block.address + rounded, rest, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = remainder
        if self._tail[block.small] is block:
            self._tail[block.small] = remainder
        block.after, block.size = remainder, rounded
        self._keep(remainder)

    def _merge(self, block: Block, neighbour: Block) -> None:
        """Take a neighbour's bytes into `block`."""
        block.size += neighbour.size
        if neighbour is block.before:
            block.address, block.before = neighbour.address, neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        if self._tail[block.small] is neighbour:
            self._tail[block.small] = block

    def _keep(self, block: Block) -> None:
        block.free = True
        bisect.insort(self._free[block.small], (block.size, block.address, block), key=lambda entry: entry[:2])

    def _forget(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect.bisect_left(pool, (block.size, block.address), key=lambda entry: entry[:2])]
        block.free = False
