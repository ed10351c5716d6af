"""The benchmarks' pictures, at the README's size and on a light ground; ours is blue."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = ("#1f4ea8", "#4269d0", "#7c9be6", "#a9bdf0")
PEERS = {"pytorch-forecasting": "#d9822b", "darts": "#3a9d5d", "neuralforecast": "#9a5fb5"}
GREY, PALE, TARGET = "#a8adb5", "#d5d8dd", "#b00020"


def grid(columns: int, rows: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    print(f"wrote {path}")


def draw_peers(path: Path, results: Mapping[str, Any], lines: Sequence[Any], ours: Sequence[str]) -> None:
    """A panel a line that is measured, a bar a program: the median over rounds by the clock on the wall, and its range."""
    shown = [line for line in lines if line.name != "build growth"]
    names = list(results)
    figure, axes = grid(3, 2, 11, 1.4 + 0.5 * len(names))
    for axis, line in zip(axes, shown, strict=True):
        for place, name in enumerate(names):
            values = results[name][line.name]["wall"]
            middle = statistics.median(values)
            color = OURS[1] if name in ours else PALE if name.endswith("+ allocator") else GREY
            axis.barh(place, middle, color=color, height=0.68)
            axis.plot([min(values), max(values)], [place, place], color="#222222", linewidth=1.2)
            label = f"{middle:,.2f}" if line.unit == "s" and middle < 100 else f"{middle:,.0f}"
            axis.annotate(label, (max(values), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_yticks(range(len(names)), names if axis in (axes[0], axes[3]) else [""] * len(names), fontsize=8)
        for tick, name in zip(axis.get_yticklabels(), names, strict=True):
            tick.set_fontweight("bold" if name in ours else "normal")
        axis.invert_yaxis()
        axis.margins(x=0.18)
        axis.set_xlim(left=0)
        axis.set_title(f"{line.name}, {line.unit}, {'more' if line.more_is_better else 'less'} is better", fontsize=9, loc="left")
        axis.locator_params(axis="x", nbins=4)
    save(figure, path)


def draw_race(path: Path, heats: Mapping[str, Any]) -> None:
    """A panel a heat (data and hidden size): the lowest validation loss so far against seconds from the start of the process, a line
    a seed, and pale the loss of every evaluation. The dashed line is the loss to reach, the dot of each line where it does."""
    columns = min(2, len(heats))
    rows = -(-len(heats) // columns)
    figure, axes = grid(columns, rows, 5.5 * columns, 3.3 * rows + 0.4)
    for axis in axes[len(heats) :]:
        axis.set_visible(False)
    ours = list(dict.fromkeys(name for heat in heats.values() for name in heat["curves"] if name not in PEERS))
    lines: dict[str, Any] = {}  # one of each program, for the legend
    for axis, (title, heat) in zip(axes, heats.items(), strict=False):
        losses = [loss for curves in heat["curves"].values() for curve in curves.values() for loss in curve["loss"][1:]]
        for name, curves in heat["curves"].items():
            color = OURS[ours.index(name) % len(OURS)] if name in ours else PEERS.get(name, GREY)
            for curve in curves.values():
                lowest = list(accumulate(curve["loss"], min))
                axis.plot(curve["since_start"], curve["loss"], color=color, linewidth=0.8, alpha=0.25, zorder=1)
                lines[name] = axis.plot(
                    curve["since_start"], lowest, color=color, linewidth=1.5, drawstyle="steps-post", zorder=3 if name in ours else 2
                )[0]
                reached = [place for place, loss in enumerate(curve["loss"]) if loss <= heat["target"]]
                if reached:
                    axis.plot(curve["since_start"][reached[0]], curve["loss"][reached[0]], "o", color=color, markersize=5, zorder=4)
        axis.axhline(heat["target"], color=TARGET, linestyle="--", linewidth=1)
        low, high = min([*losses, heat["target"]]), max(sorted(losses)[int(0.9 * (len(losses) - 1))], heat["target"])
        margin = 0.08 * (high - low) or 0.01
        axis.set_ylim(low - margin, high + margin)
        axis.set_xlim(left=0)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_title(f"to reach: {heat['target']:.4f}, best of {heat['best peer']}", fontsize=8, loc="right", color=TARGET)
        axis.set_xlabel("seconds from the start of the process, without evaluations", fontsize=8)
        axis.set_ylabel("validation quantile loss", fontsize=8)
        axis.grid(color="#eeeeee")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save(figure, path)


def draw_policies(path: Path, results: Mapping[str, Mapping[str, list[float]]], baseline: str) -> None:
    """Memory at the peak of training and validation, and the seconds of a step and around validation, a bar a choice."""
    names = list(results)
    figure, axes = grid(3, 1, 11, 1.2 + 0.26 * len(names))
    middle = {name: {line: statistics.median(values) for line, values in found.items()} for name, found in results.items()}
    for place, name in enumerate(names):
        found, color = middle[name], OURS[1] if name == baseline else GREY
        axes[0].barh(place - 0.2, found["train peak_mib"], color=color, height=0.38)
        axes[0].barh(place + 0.2, found["validation peak_mib"], color=OURS[3] if name == baseline else PALE, height=0.38)
        axes[1].barh(place, 1e3 * found["step seconds"], color=color, height=0.68)
        axes[2].barh(place, 1e3 * found["around validation seconds"], color=color, height=0.68)
        axes[1].plot([1e3 * edge for edge in _range(results[name]["step seconds"])], [place, place], color="#222222", linewidth=1.2)
    titles = ("peak MiB: training (dark), validation (pale)", "a training step, ms", "around a validation, ms")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_yticks(range(len(names)), names if axis is axes[0] else [""] * len(names), fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        axis.invert_yaxis()
        axis.set_xlim(left=0)
    save(figure, path)


def draw_scale(path: Path, results: Mapping[str, Mapping[str, Any]], lines: Sequence[str]) -> None:
    """A row of panels a scale, a panel a figure: both axes logarithmic, the dashed line grows as the scale does."""
    figure, axes = grid(len(lines), len(results), 2.9 * len(lines), 2.5 * len(results) + 0.2)
    for number, (scale, found) in enumerate(results.items()):
        at = [float(place) for place in found["at"]]
        for axis, line in zip(axes[number * len(lines) :], lines, strict=False):
            values = [statistics.median(of_place) for of_place in found[line]]
            axis.plot(at, [values[0] * place / at[0] for place in at], "--", color=PALE, linewidth=1.2)
            axis.plot(at, values, "o-", color=OURS[1], markersize=4)
            for place, of_place in zip(at, found[line], strict=True):
                axis.plot([place, place], _range(of_place), color="#222222", linewidth=1.2)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(at, [f"{place:,.0f}" for place in at])
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:,g}")
            axis.xaxis.set_minor_locator(NullLocator())
            axis.yaxis.set_minor_locator(NullLocator())
            axis.set_title(line, fontsize=9, loc="left")
            axis.set_xlabel(scale, fontsize=8)
            axis.grid(color="#eeeeee")
    save(figure, path)


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]
