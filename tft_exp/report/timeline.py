"""A run's memory timeline as a table and a picture."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tft_exp.memory.devices import DeviceMemory
from tft_exp.memory.timeline import PhaseRecord
from tft_exp.report.style import KIND_COLORS, PHASE_COLORS, new_figure


def write_timeline(records: Sequence[PhaseRecord], memory: DeviceMemory, folder: Path, title: str) -> None:
    """Write timeline.csv and timeline.png into `folder`/timeline; nothing where there is no phase."""
    if not records:
        return
    target = folder / "timeline"
    target.mkdir(parents=True, exist_ok=True)
    _write_table(records, memory, target / "timeline.csv")
    _draw(records, memory, target / "timeline.png", title)


def _write_table(records: Sequence[PhaseRecord], memory: DeviceMemory, path: Path) -> None:
    quantity = memory.quantity
    header = ["epoch", "phase", "seconds", f"start_{quantity}_mib", f"end_{quantity}_mib", f"peak_{quantity}_mib"]
    header += ["peak_reserved_mib", "end_reserved_mib", "end_driver_mib", "peak_host_mib"]
    kinds = list(records[0].peak.makeup or {})
    header += [f"peak_{kind.replace(' ', '_')}_mib" for kind in kinds]
    header += ["completed", "source"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for r in records:
            figures: list[float | None] = [r.seconds, r.start.allocated_mib, r.end.allocated_mib, r.peak.allocated_mib]
            figures += [r.peak.reserved_mib, r.end.reserved_mib, r.end.driver_mib, r.peak.host_mib]
            figures += [(r.peak.makeup or {})[kind] for kind in kinds]
            shown = ["" if figure is None else f"{figure:.6g}" for figure in figures]
            writer.writerow([r.epoch + 1, r.phase, *shown, r.completed, memory.source])


def _draw(records: Sequence[PhaseRecord], memory: DeviceMemory, path: Path, title: str) -> None:
    """Phases side by side at equal width, because the moments around validation take no visible time."""
    figure, axes = new_figure(width=max(6.4, min(16.0, 0.34 * len(records) + 2.5)), height=3.8)
    seen: set[str] = set()
    for x, r in enumerate(records):
        color = PHASE_COLORS.get(r.phase, "#888888")
        label = None if r.phase in seen else r.phase.replace("_", " ")
        seen.add(r.phase)
        # What the peak is made of, from the bottom: a device that does not know shows the phase alone.
        bottom = 0.0
        for kind, mib in (r.peak.makeup or {}).items():
            axes.bar(x, mib, bottom=bottom, width=1.0, color=KIND_COLORS[kind], linewidth=0, label=None if x else kind)
            bottom += mib
        if not bottom:
            axes.bar(x, r.peak.allocated_mib, width=1.0, color=color, alpha=0.35, linewidth=0)
        axes.plot([x - 0.5, x + 0.5], [r.start.allocated_mib, r.end.allocated_mib], color=color, linewidth=2.2, label=label)
        if not r.completed:
            axes.annotate("ended here", (x, r.peak.allocated_mib), ha="center", va="bottom", color="#b00020", fontweight="bold")
    boundaries = [x for x in range(1, len(records)) if records[x].epoch != records[x - 1].epoch]
    for x in boundaries:
        axes.axvline(x - 0.5, color="#cccccc", linewidth=0.8, zorder=0)
    starts = [x for x, r in enumerate(records) if r.phase == "train"]
    step = max(1, len(starts) // 20)
    axes.set_xticks(starts[::step], [f"epoch {records[x].epoch + 1}" for x in starts[::step]], ha="left")
    # From the lowest figure, not from 0: on a CPU the libraries alone fill most of the height.
    low = min(min(r.start.allocated_mib, r.end.allocated_mib) for r in records)
    high = max(r.peak.allocated_mib for r in records)
    margin = max(1.0, 0.08 * (high - low))
    axes.set_ylim(max(0.0, low - margin) if low > 0.3 * high else 0.0, high + 2 * margin)
    axes.set_xlim(-0.6, len(records) - 0.4)
    axes.set_ylabel(f"{memory.quantity} (MiB)")
    bottom = axes.get_ylim()[0]
    cut = f"; the axis starts at {bottom:.0f} MiB" if bottom > 0 else ""
    source = textwrap.fill(memory.source, width=int(16 * figure.get_figwidth()))
    room = memory.capacity_mib
    # A line far above every bar would only press the bars together.
    shows_room = room is not None and room < 3 * high
    dashes = ", dashes = room for tensors" if shows_room else ""
    axes.set_title(f"{title}\nline = start to end, bar = up to the peak{dashes}{cut}\n{source}", loc="left", fontsize=8)
    if room is not None and shows_room:
        axes.axhline(room, color="#b00020", linestyle="--", linewidth=1)
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.06 * room))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
