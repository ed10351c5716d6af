"""Phases of the memory timeline, on real allocations."""

from __future__ import annotations

import pytest
import torch

from tft_exp.memory.devices import MIB, ProcessMemory
from tft_exp.memory.timeline import Timeline


def test_each_phase_has_its_own_start_end_and_peak() -> None:
    timeline = Timeline(ProcessMemory())
    with timeline.phase("grow", 0):
        held = torch.ones(120 * MIB // 4)
    with timeline.phase("spike", 0):
        spike = torch.ones(200 * MIB // 4)
        del spike
    with timeline.phase("shrink", 0):
        del held
    grow, spiked, shrink = timeline.records
    assert -grow.freed_mib == pytest.approx(120, abs=8)
    assert spiked.freed_mib == pytest.approx(0, abs=8)
    assert spiked.peak.allocated_mib - spiked.start.allocated_mib == pytest.approx(200, abs=8)
    assert shrink.freed_mib == pytest.approx(120, abs=8)
    # The spike is not billed to the phase after it.
    assert shrink.peak.allocated_mib - shrink.start.allocated_mib == pytest.approx(0, abs=8)


def test_an_exception_is_recorded_with_its_phase_and_passes_through() -> None:
    timeline = Timeline(ProcessMemory())
    with timeline.phase("train", 0):
        pass
    with pytest.raises(ZeroDivisionError), timeline.phase("validation", 0):
        raise ZeroDivisionError
    assert timeline.interrupted is not None
    assert timeline.interrupted.phase == "validation"
    assert [record.completed for record in timeline.records] == [True, False]


def test_no_phase_was_interrupted_where_all_ended() -> None:
    timeline = Timeline(ProcessMemory())
    with timeline.phase("train", 3):
        pass
    assert timeline.interrupted is None
    assert [record.epoch for record in timeline.of_epoch(3)] == [3]


def test_phases_do_not_nest() -> None:
    timeline = Timeline(ProcessMemory())
    with pytest.raises(RuntimeError, match="within another"), timeline.phase("train"), timeline.phase("validation"):
        pass
