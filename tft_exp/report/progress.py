"""A run's progress: a bar with the time left on a terminal, one line an epoch elsewhere and in the job's log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

log = logging.getLogger("tft_exp.epoch")


class Listener(Protocol):
    """Shows a run's progress elsewhere: in the process of the sweep that the run belongs to."""

    def epoch(self, text: str) -> None: ...
    def progress(self, fraction: float, state: str) -> None: ...


# Of this process; None where it shows its progress itself.
listener: Listener | None = None


class Progress:
    """Counts batches over all epochs; `batches` is the number of batches an epoch by phase."""

    def __init__(self, name: str, epochs: int, batches: Mapping[str, int]) -> None:
        self._name = name
        self._epochs = epochs
        self._last = ""
        self._total = max(1, epochs * sum(batches.values()))
        self._done = 0
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=listener is not None or not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task(name, total=self._total, state="")
        self._epoch = 1

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, phase: str) -> None:
        """One batch of `phase` is done."""
        state = f"epoch {self._epoch}/{self._epochs} {phase}{self._last}"
        self._done += 1
        if listener is not None:
            listener.progress(self._done / self._total, state)
        self._bar.update(self._task, advance=1, state=state)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Epoch `number` (from 1) is done, with these metrics."""
        train, val, seconds = metrics["train/loss"], metrics["val/loss"], metrics["epoch/seconds"]
        line = f"{self._name} epoch {number}/{self._epochs}: train loss {train:.4f}, validation loss {val:.4f}, {seconds:.1f} s"
        log.info(line)
        self._last = f", val loss {val:.4f}"
        self._epoch = number + 1
        if listener is not None:
            listener.epoch(line)
        elif self._bar.disable:
            print(line, file=sys.stderr, flush=True)
