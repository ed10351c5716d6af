"""What the report's reproduction computes itself, beside the figures that it reads from runs."""

from __future__ import annotations

from types import ModuleType

from tft_exp.memory.trace import TracingAllocator

MIB = 2**20


def test_what_is_kept_of_a_segment_by_one_that_lives_in_it(script: ModuleType) -> None:
    # A block of 18 MiB dies before the second comes, which takes 4 MiB of its segment and stays.
    assert script.retained([18 * MIB, 4 * MIB], [1, None]) == (14 * MIB, 14 * MIB)
    # Where both live at once, the second gets a segment of 20 MiB of its own, and the first one's is given back.
    assert script.retained([18 * MIB, 4 * MIB], [2, None]) == (16 * MIB, 16 * MIB)
    assert script.retained([18 * MIB, 4 * MIB], [1, 1]) == (0, 0)


def test_how_long_each_allocation_lived(script: ModuleType) -> None:
    allocator = TracingAllocator()
    first = allocator.allocate(100)
    second = allocator.allocate(200)
    allocator.release(first)
    allocator.allocate(300)
    allocator.release(second)
    assert script.lives(allocator.trace) == [(100, 2), (200, 2), (300, None)]


def test_moments_are_those_of_the_last_epoch_that_reached_validation(script: ModuleType) -> None:
    def row(epoch: int, phase: str, start: float, end: float) -> dict[str, str]:
        return {"epoch": str(epoch), "phase": phase, "start_allocated_mib": str(start), "end_allocated_mib": str(end)}

    rows = [row(1, "setup", 0, 5), row(1, "train", 5, 9), row(1, "before_validation", 9, 4), row(1, "validation", 4, 4)]
    assert script.moments(rows) == {"epoch start": 5, "after training": 9, "before validation": 9, "after the drop": 4}
    assert script.moments([*rows, row(2, "train", 7, 8)])["after training"] == 9
    assert script.moments([*rows, row(2, "train", 7, 8), row(2, "before_validation", 8, 3)])["after the drop"] == 3
