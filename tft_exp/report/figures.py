"""The comparison as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tft_exp.report.groups import Group, outcomes, peak, quantity_of
from tft_exp.report.style import PHASE_COLORS, new_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUN, MEAN, LIMIT, STATE, HELD = "#4269d0", "#1b2a4a", "#b00020", "#c9ced6", "#ff8c00"


def draw_comparison(title: str, groups: Sequence[Group], path: Path) -> None:
    """Peaks by phase, the optimizer's state and what validation still held of it, seconds an epoch and validation loss."""
    figure, (memory, state, seconds, loss) = new_figures(width=13.0, height=max(2.8, 0.6 * len(groups) + 1.7), columns=4)
    quantity = quantity_of([run for group in groups for run in group.runs])
    peaks = {phase: [peak(group, phase) for group in groups] for phase in ("train", "validation")}
    _pairs(memory, [(phase, values, PHASE_COLORS[phase]) for phase, values in peaks.items()], ".0f")
    memory.set_xlabel(f"peak {quantity} (MiB)")
    capacities = {run.tags.get("capacity_mib") for group in groups for run in group.runs}
    room = float(min(capacities, key=str) or "inf") if len(capacities) == 1 else math.inf
    # A line far beyond every bar would only press the bars together.
    if room < 3 * max((value or 0.0 for values in peaks.values() for value in values), default=0.0):
        _mark(memory, room, "room for tensors")
    held = {
        metric: [_highest(group, f"summary/{metric}") for group in groups] for metric in ("optimizer_state_mib", "state_in_validation_mib")
    }
    _pairs(
        state,
        [("after training", held["optimizer_state_mib"], STATE), ("still held in validation", held["state_in_validation_mib"], HELD)],
        ".2f",
    )
    state.set_xlabel("optimizer state (MiB)")
    _dots(seconds, groups, "summary/epoch_seconds")
    seconds.set_xlabel("seconds an epoch")
    _dots(loss, groups, "summary/val_loss")
    loss.set_xlabel("validation loss")
    naive = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(naive) == 1:
        _mark(loss, naive.pop(), "best naive")
    for axes in (memory, state, seconds, loss):
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_yticks(range(len(groups)), [group.label if axes is memory else "" for group in groups])
        axes.xaxis.label.set_fontsize(9)
    figure.suptitle(f"{title} (dot = run, line = mean over runs)", x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=130)


def _mark(axes: Axes, value: float, label: str) -> None:
    axes.axvline(value, color=LIMIT, linestyle="--", linewidth=1)
    axes.text(value, 1.0, label, transform=axes.get_xaxis_transform(), va="bottom", ha="center", color=LIMIT, fontsize=8)


def _highest(group: Group, metric: str) -> float | None:
    return max(group.values(metric), default=None)


def _pairs(axes: Axes, series: Sequence[tuple[str, Sequence[float | None], str]], form: str) -> None:
    """Two bars a group, one above the other; a figure that was not measured is a dash."""
    for shift, (label, values, color) in zip((-0.2, 0.2), series, strict=True):
        bars = axes.barh(
            [row + shift for row in range(len(values))], [value or 0.0 for value in values], height=0.38, color=color, label=label
        )
        axes.bar_label(bars, ["-" if value is None else format(value, form) for value in values], padding=3, fontsize=8)
    axes.margins(x=0.2)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False, fontsize=8, ncols=2)


def _dots(axes: Axes, groups: Sequence[Group], metric: str) -> None:
    for row, group in enumerate(groups):
        values = group.values(metric)
        if not values:
            axes.text(0.03, row, outcomes(group), va="center", fontsize=8, color=LIMIT, transform=axes.get_yaxis_transform(), wrap=True)
            continue
        axes.plot(values, [row] * len(values), "o", color=RUN, alpha=0.6, markersize=6, markeredgewidth=0)
        axes.plot([statistics.fmean(values)] * 2, [row - 0.25, row + 0.25], color=MEAN, linewidth=2)
    axes.margins(x=0.15)
    axes.grid(axis="x", color="#eeeeee")
