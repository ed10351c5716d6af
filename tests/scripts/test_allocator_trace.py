"""The comparison of a recorded trace with the allocator's model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tft_exp.memory.allocator import Block, CachingAllocator, segment_size

SCRIPT = Path(__file__).parents[2] / "scripts" / "allocator_trace.py"
MIB = 2**20


def trace_of_model(seed: int) -> list[tuple[str, int, int]]:
    """A trace as a card would have left it that behaves exactly as the model does."""
    rng, allocator = random.Random(seed), CachingAllocator(1 << 60)
    live: list[Block] = []
    events: list[tuple[str, int, int]] = []
    for _ in range(400):
        before = allocator.reserved
        if live and rng.random() < 0.45:
            block = live.pop(rng.randrange(len(live)))
            events.append(("free_completed", block.address, block.size))
            allocator.release(block)
        elif rng.random() < 0.02:
            allocator.flush()
        else:
            size = rng.choice([100, 3000, 700_000, 3 * MIB, 15 * MIB])
            block = allocator.allocate(size)
            assert block is not None
            live.append(block)
            events.append(("alloc", block.address, size))
        if allocator.reserved > before:
            events.insert(-1, ("segment_alloc", 0, allocator.reserved - before))
        elif allocator.reserved < before:
            events.append(("segment_free", 0, before - allocator.reserved))
    return events


@pytest.mark.parametrize("seed", range(5))
def test_a_card_that_is_the_model_is_off_by_nothing(seed: int, script: ModuleType) -> None:
    found = script.compare(trace_of_model(seed))
    assert found.largest_error == 0
    assert found.peak_model == found.peak_recorded > 20 * MIB


def test_a_card_that_takes_more_is_off_by_what_it_takes(script: ModuleType) -> None:
    events = [("segment_alloc", 0, segment_size(15 * MIB) + 4 * MIB), ("alloc", 1, 15 * MIB), ("free_completed", 1, 15 * MIB)]
    found = script.compare(events)
    assert (found.requests, found.largest_error, found.peak_recorded, found.peak_model) == (1, 4 * MIB, 20 * MIB, 16 * MIB)
    assert "-20.00%" in str(found)


def test_a_trace_that_began_too_late_is_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="did not allocate"):
        script.compare([("free_completed", 0x700, 512)])


def test_the_command_compares_a_file_and_says_that_recording_needs_a_card(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"card": "a card", "torch": "2.13.0", "expandable_segments": False, "events": trace_of_model(0)}))
    done = subprocess.run([sys.executable, str(SCRIPT), "compare", str(path)], capture_output=True, text=True, check=True)
    assert "a card, torch 2.13.0" in done.stdout
    assert "(+0.00%)" in done.stdout
    done = subprocess.run([sys.executable, str(SCRIPT), "record", str(path), "model=tiny", "device=cpu"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs a CUDA card" in done.stderr
