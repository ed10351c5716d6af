"""Figures of the comparison's page, as SVG that takes the page's colours, light or dark."""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tft_exp.report.groups import Group, capacity_mib, peak, quantity_of
from tft_exp.report.style import KIND_COLORS, new_figures
from tft_exp.report.verdict import objectives, pareto
from tft_exp.tracking.curves import Curves, Moment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand for the page's own colours, which are not known here; replaced in the SVG's text.
INK, PALE = "#010203", "#040506"
LIMIT = "#d1344b"
WIDTH = 10.5  # inches
SHOWN_LABELS = 12  # of points and lines; with more, labels would lie on each other
COLORS = ("#4269d0", "#ff8c00", "#3a9d5d", "#a463f2", "#6cc5b0", "#e3b505", "#9c6b4e", "#ff8ab7", "#97bbf5", "#9498a0")


def color_of(groups: Sequence[Group], group: Group) -> str:
    return COLORS[groups.index(group) % len(COLORS)]


def peaks_figure(groups: Sequence[Group], curves: Mapping[str, Curves]) -> str:
    """Peak by phase, stacked by kind where it is known, against the capacity line."""
    figure, panels = new_figures(width=WIDTH, height=1.5 + 0.3 * len(groups), columns=2)
    capacity = capacity_mib(groups)
    highest = max((value for phase in ("train", "validation") for group in groups if (value := peak(group, phase))), default=1.0)
    for axes, phase in zip(panels, ("train", "validation"), strict=True):
        for row, group in enumerate(groups):
            moment = _highest(group, phase, curves)
            if moment is None:
                axes.text(0.01, row, "not measured", va="center", fontsize=8, color=INK, transform=axes.get_yaxis_transform())
                continue
            left = 0.0
            for kind, mib in moment.kinds.items():
                axes.barh(row, mib, left=left, height=0.7, color=KIND_COLORS[kind], label=None if row else kind)
                left += mib
            if not left:
                axes.barh(row, moment.peak_mib, height=0.7, color=COLORS[0], alpha=0.55)
            note = "" if moment.completed else ", then out of memory"
            axes.text(max(left, moment.peak_mib), row, f" {moment.peak_mib:,.0f}{note}", va="center", fontsize=8, color=INK)
        if capacity is not None and capacity < 4 * highest:
            axes.axvline(capacity, color=LIMIT, linestyle="--", linewidth=1.2)
            axes.text(capacity, 0.02, f"room {capacity:,.0f} ", transform=axes.get_xaxis_transform(), color=LIMIT, fontsize=8, ha="right")
        axes.set_xlim(0, max(highest, capacity if capacity is not None and capacity < 4 * highest else 0.0) * 1.3)
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_yticks(range(len(groups)), [group.label if axes is panels[0] else "" for group in groups])
        axes.set_title(f"peak in {phase}, {quantity_of([run for group in groups for run in group.runs])} MiB")
    handles, labels = next((found for axes in panels if (found := axes.get_legend_handles_labels())[0]), ([], []))
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8, labelcolor=INK)
    return _svg(figure, panels)


def _highest(group: Group, phase: str, curves: Mapping[str, Curves]) -> Moment | None:
    moments = [moment for run in group.runs for moment in curves[run.run_id].moments if moment.phase == phase]
    return max(moments, key=lambda moment: moment.peak_mib, default=None)


def pareto_figure(groups: Sequence[Group]) -> str:
    """Peak memory against validation loss and against seconds; what no other choice beats in all three is ringed."""
    figure, panels = new_figures(width=WIDTH, height=4.0, columns=2)
    best = pareto(groups)
    measured = [(group, values) for group in groups if (values := objectives(group)) is not None]
    for axes, (place, label) in zip(panels, ((2, "validation loss, mean"), (1, "seconds an epoch, median")), strict=True):
        named: dict[tuple[int, int], tuple[float, float, list[str]]] = {}  # choices at one point share its label
        for group, values in measured:
            x, y = values[0], values[place]
            size, edge = (60, INK) if group in best else (32, "none")
            axes.scatter(x, y, s=size, color=color_of(groups, group), edgecolors=edge, linewidths=1.4, zorder=3)
            if len(measured) <= SHOWN_LABELS or (group in best and len(best) <= SHOWN_LABELS):
                cell = _cell(x, [other[0] for _, other in measured]), _cell(y, [other[place] for _, other in measured])
                named.setdefault(cell, (x, y, []))[2].append(group.label)
        middle = statistics.fmean(axes.get_xlim())
        for x, y, labels in named.values():
            side, shift = ("left", 7) if x < middle else ("right", -7)
            axes.annotate(_names(labels), (x, y), xytext=(shift, 5), textcoords="offset points", fontsize=8, color=INK, ha=side)
        axes.set_xlabel("highest peak, MiB", fontsize=9)
        axes.set_title(label)
        axes.margins(0.15)
        axes.grid(color=PALE, linewidth=0.6)
    return _svg(figure, panels)


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 2 else f"{labels[0]} and {len(labels) - 1} more"


def _cell(value: float, values: Sequence[float]) -> int:
    """Which twentieth of the range a value lies in."""
    low, high = min(values), max(values)
    return 0 if high == low else round((value - low) / (high - low) * 20)


def curves_figure(groups: Sequence[Group], curves: Mapping[str, Curves]) -> str:
    """Validation loss by epoch: mean over seeds, and the band from the lowest to the highest. Memory by phase, overlaid."""
    figure, (loss, memory) = new_figures(width=WIDTH, height=4.2, columns=2)
    band = 0.15 if len(groups) <= 4 else 0.05
    for group in groups:
        found = [curves[run.run_id].losses for run in group.runs]
        epochs = sorted({epoch for one in found for epoch in one})
        if not epochs:
            continue
        rows = [[one[epoch] for one in found if epoch in one] for epoch in epochs]
        color = color_of(groups, group)
        loss.plot(
            epochs, [statistics.fmean(row) for row in rows], color=color, label=group.label, linewidth=1.6, marker="o", markersize=2.5
        )
        loss.fill_between(epochs, [min(row) for row in rows], [max(row) for row in rows], color=color, alpha=band, linewidth=0)
    naive = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(naive) == 1:
        loss.axhline(naive.pop(), color=LIMIT, linestyle="--", linewidth=1.2, label="best naive")
    loss.set_title("validation loss by epoch")
    loss.set_xlabel("epoch", fontsize=9)
    loss.locator_params(axis="x", integer=True)
    for group in groups:
        moments = next((curves[run.run_id].moments for run in group.runs if curves[run.run_id].moments), [])
        points = [(place, mib) for number, moment in enumerate(moments) for place, mib in _edges(number, moment)]
        if points:
            memory.plot(*zip(*points, strict=True), color=color_of(groups, group), linewidth=1.1, alpha=0.85, label=group.label)
            if not moments[-1].completed:
                memory.plot(*points[-2], marker="x", color=LIMIT, markersize=8, markeredgewidth=2)
    capacity = capacity_mib(groups)
    if capacity is not None and memory.get_ylim()[1] * 4 > capacity:
        memory.axhline(capacity, color=LIMIT, linestyle="--", linewidth=1.2)
    memory.set_ylim(bottom=0)
    memory.set_title("memory by phase, MiB (first seed; x: out of memory)")
    memory.set_xlabel("phases, in order and of equal width", fontsize=9)
    for axes in (loss, memory):
        axes.grid(color=PALE, linewidth=0.6)
    handles, labels = loss.get_legend_handles_labels()
    if len(labels) <= SHOWN_LABELS + 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return _svg(figure, [loss, memory])


def _edges(number: int, moment: Moment) -> list[tuple[float, float]]:
    return [(number, moment.start_mib), (number + 0.5, moment.peak_mib), (number + 1.0, moment.end_mib)]


def _svg(figure: Figure, panels: Sequence[Axes]) -> str:
    """The figure's SVG element, drawn in the page's colours, with text as text."""
    import matplotlib

    for axes in panels:
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(INK)
        axes.tick_params(colors=INK)
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_color(INK)
    figure.patch.set_visible(False)
    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tft-exp"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PALE, "var(--pale)")
    return re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"([^>]*?) (?:width|height)="[^"]*"', r'\1\2 width="100%"', svg, count=1)
