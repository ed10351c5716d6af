"""A sweep on the terminal: a line a job as it ends, and on a terminal a bar with the time left and one for each job that runs."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from tft_exp.sweep.jobs import Ended, SweepJob

WORDS = {"out_of_memory": "out of memory", "done": "done before"}


class SweepDisplay:
    """Shows what a sweep's processes tell. Lines go to standard error, as a run's own do."""

    def __init__(self, total: int, first: int = 0) -> None:
        self._console = Console(stderr=True)
        self._total = total
        self._first = first  # a sweeper that searches comes with some jobs at a time
        self._count = 0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._all = self._bars.add_task("sweep", total=total, state=f"0/{total} jobs")
        self._tasks: dict[int, TaskID] = {}
        self._fractions: dict[int, float] = {}

    def __enter__(self) -> SweepDisplay:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def started(self, job: SweepJob) -> None:
        self._tasks[job.number] = self._bars.add_task(escape(job.label), total=1.0, state="starts")

    def message(self, text: str) -> None:
        self._print(text)

    def epoch(self, text: str) -> None:
        if self._bars.disable:
            self._print(text)

    def progress(self, job: SweepJob, fraction: float, state: str) -> None:
        self._fractions[job.number] = fraction
        self._bars.update(self._tasks[job.number], completed=fraction, state=escape(state))
        self._update()

    def ended(self, ended: Ended) -> None:
        self._count += 1
        self._fractions.pop(ended.number, None)
        if ended.number in self._tasks:
            self._bars.remove_task(self._tasks.pop(ended.number))
        self._print(line(ended, self._first + self._count, self._first + self._total))
        self._update()

    def _update(self) -> None:
        done = self._count + sum(self._fractions.values())
        self._bars.update(self._all, completed=done, state=f"{self._count}/{self._total} jobs")

    def _print(self, text: str) -> None:
        if self._bars.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def line(ended: Ended, count: int, total: int) -> str:
    """What became of a job: its name and overrides, outcome, peak, seconds and loss."""
    outcome = WORDS.get(ended.outcome, ended.outcome)
    if ended.phase is not None:
        outcome += f" in {ended.phase.replace('_', ' ')}"
    peak = next((f"{value:,.0f} MiB" for key, value in ended.summary.items() if key in ("peak_allocated_mib", "peak_rss_mib")), None)
    loss = f"loss {ended.summary['val_loss']:.4f}" if "val_loss" in ended.summary else None
    seconds = f"{ended.seconds:.1f} s" if ended.seconds else None
    figures = [figure for figure in (peak and f"peak {peak}", seconds, loss) if figure]
    reason = f": {ended.reason}" if ended.reason else ""
    return f"[{count}/{total}] {ended.label}: {', '.join([outcome, *figures])}{reason}"
