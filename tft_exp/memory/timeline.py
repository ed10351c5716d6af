"""The memory timeline of a run: start, end and peak of each phase, as the device gives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tft_exp.memory.devices import DeviceMemory, Reading


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of one epoch. `completed` is False where an exception ended it."""

    epoch: int
    phase: str
    seconds: float
    start: Reading
    end: Reading
    peak: Reading
    completed: bool

    @property
    def freed_mib(self) -> float:
        """What the device holds less at the end than at the start; negative where it holds more."""
        return self.start.allocated_mib - self.end.allocated_mib


class Timeline:
    """Measures phases one after another; they do not nest, because a device keeps one peak mark only.

    A phase's seconds include waiting for the device, so that no work of one phase is billed to the next.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.records: list[PhaseRecord] = []
        self._open = False

    @contextmanager
    def phase(self, name: str, epoch: int = 0, *, settled: bool = False) -> Iterator[None]:
        """Measure what runs inside. With `settled`, what nobody holds any more is let go before the start is read, so
        that `freed_mib` is what the phase itself freed."""
        if self._open:
            raise RuntimeError(f"phase {name!r} began within another phase")
        memory = self.memory
        memory.synchronize()
        if settled:
            memory.settle()
        self._open = True
        start = memory.now()
        memory.reset_peak()
        began = time.perf_counter()
        completed = False
        try:
            yield
            memory.synchronize()
            completed = True
        finally:
            seconds = time.perf_counter() - began
            self._open = False
            self.records.append(PhaseRecord(epoch, name, seconds, start, memory.now(), memory.peak(), completed))

    @property
    def interrupted(self) -> PhaseRecord | None:
        """The phase that an exception ended, if one did."""
        return next((record for record in reversed(self.records) if not record.completed), None)

    def of_epoch(self, epoch: int) -> list[PhaseRecord]:
        return [record for record in self.records if record.epoch == epoch]
