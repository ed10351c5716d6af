"""The comparison as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from tft_exp.report.compare import Group, peak, quantity_of
from tft_exp.report.style import PHASE_COLORS, new_figures


def draw_comparison(sweep_id: str, groups: Sequence[Group], path: Path) -> None:
    """Peaks by phase, seconds an epoch and validation loss of every group, a dot for each run."""
    figure, (memory, seconds, loss) = new_figures(width=11.0, height=max(2.6, 0.62 * len(groups) + 1.6), columns=3)
    rows = range(len(groups))
    for shift, phase in ((-0.2, "train"), (0.2, "validation")):
        peaks = [peak(group, phase) for group in groups]
        bars = memory.barh(
            [row + shift for row in rows], [value or 0.0 for value in peaks], height=0.38, color=PHASE_COLORS[phase], label=phase
        )
        memory.bar_label(bars, ["-" if value is None else f"{value:.0f}" for value in peaks], padding=3, fontsize=8)
    runs = [run for group in groups for run in group.runs]
    memory.set_xlabel(f"peak {quantity_of(runs)} (MiB)")
    memory.margins(x=0.18)
    memory.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False, fontsize=8, ncols=2)
    for axes, metric, label in ((seconds, "summary/epoch_seconds", "seconds an epoch"), (loss, "summary/val_loss", "validation loss")):
        for row, group in enumerate(groups):
            values = group.values(metric)
            if not values:
                axes.text(0.02, row, "no epoch finished", va="center", fontsize=8, color="#777777", transform=axes.get_yaxis_transform())
                continue
            axes.plot(values, [row] * len(values), "o", color="#4269d0", alpha=0.6, markersize=6, markeredgewidth=0)
            axes.plot([statistics.fmean(values)] * 2, [row - 0.25, row + 0.25], color="#1b2a4a", linewidth=2)
        axes.set_xlabel(f"{label} (dot = run, line = mean)")
        axes.margins(x=0.15)
        axes.grid(axis="x", color="#eeeeee")
    naive = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(naive) == 1:
        value = naive.pop()
        loss.axvline(value, color="#b00020", linestyle="--", linewidth=1)
        loss.text(value, 1.0, " best naive", transform=loss.get_xaxis_transform(), va="bottom", ha="center", color="#b00020", fontsize=8)
    for axes in (memory, seconds, loss):
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_yticks(rows, [group.label if axes is memory else "" for group in groups])
    figure.suptitle(f"Sweep {sweep_id}", x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=130)
