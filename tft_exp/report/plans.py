"""Plans side by side: a table, JSON and CSV, and bars by phase against the card."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tft_exp.planning.plan import FIRST, LATER, PhasePeak, Plan, Planned, Verdict
from tft_exp.report.style import KIND_COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {Verdict.fits: "green", Verdict.tight: "yellow", Verdict.out_of_memory: "red", Verdict.unlimited: ""}
TELLING = ("experiment", "model", "batch", "policy", "optimizer", "device")
# Columns in the order in which a terminal that is too narrow goes without them.
FIRST_TO_GO = ("of it", "host", "parameters", "policy", "relative")


def varying(planned: Sequence[Planned]) -> list[str]:
    """Groups and keys in which the combinations differ; of a single one, what tells it from others as a rule."""
    keys = list(dict.fromkeys(key for one in planned for key in one.choices))
    differing = [key for key in keys if len({one.choices.get(key) for one in planned}) > 1]
    return differing or [key for key in keys if key in TELLING]


def relative_costs(planned: Sequence[Planned]) -> dict[int, float]:
    """Predicted seconds of a training window, by index, over the least of those that do not run out of memory."""
    seconds = {
        index: one.plan.window_seconds
        for index, one in enumerate(planned)
        if one.plan is not None and one.plan.verdict is not Verdict.out_of_memory
    }
    least = min(seconds.values(), default=1.0)
    return {index: value / least for index, value in seconds.items()}


def plans_table(planned: Sequence[Planned], width: int) -> Table:
    """All plans for a terminal of `width` characters; a narrow one gets fewer columns."""
    dropped: list[str] = []
    for heading in (None, *FIRST_TO_GO):
        if heading is not None:
            dropped.append(heading)
        table = _table(planned, dropped)
        if Console(width=10 * width).measure(table).minimum <= width:
            break
    return table


def _table(planned: Sequence[Planned], dropped: Sequence[str]) -> Table:
    table = Table(title="Plan, MiB", title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    keys, costs = varying(planned), relative_costs(planned)
    cards = {(one.plan.capacity_mib, one.plan.context_mib) for one in planned if one.plan is not None}
    rows = [_cells(one, costs.get(index)) for index, one in enumerate(planned)]
    headings = [heading for heading in rows[0] if not heading.startswith(tuple(dropped))] if dropped else list(rows[0])
    for key in keys or ["run"]:
        table.add_column(key, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "outcome" else "right", no_wrap=True)
    for one, cells in zip(planned, rows, strict=True):
        verdict = one.plan.verdict if one.plan is not None else Verdict.out_of_memory
        named = [Text(one.choices.get(key, "-")) for key in keys] or [Text("as configured")]
        figures = [Text(cells[heading], style=COLORS[verdict] if heading == "outcome" else "") for heading in headings]
        table.add_row(*named, *figures)
    table.caption = _caption(planned, cards)
    return table


def _cells(one: Planned, cost: float | None) -> dict[str, str]:
    plan = one.plan
    names = ("parameters", "first step", "later steps", "policy", "validation", "reserved", "left", "host", "of it\np / g / s / k / o")
    headings = [*names, "relative\ncost", "outcome"]
    if plan is None:
        return {heading: "refused" if heading == "outcome" else "-" for heading in headings}
    by_phase = {peak.phase: peak for peak in plan.peaks}
    around = max((by_phase[name].allocated_mib for name in ("before_validation", "after_validation") if name in by_phase), default=None)
    kinds = [plan.highest.makeup_mib.get(kind, 0.0) for kind in KIND_COLORS]
    figures = [
        f"{plan.parameters:,}",
        _mib(by_phase[FIRST].allocated_mib if FIRST in by_phase else None),
        _mib(by_phase[LATER].allocated_mib if LATER in by_phase else None),
        _mib(around),
        _mib(by_phase["validation"].allocated_mib if "validation" in by_phase else None),
        _mib(plan.reserved_mib),
        _mib(plan.left_mib),
        _mib(plan.host_peak_mib),
        " / ".join(f"{mib:,.0f}" for mib in kinds),
        "-" if cost is None else f"{cost:.2f}",
        plan.outcome.replace("_", " "),
    ]
    return dict(zip(headings, figures, strict=True))


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _caption(planned: Sequence[Planned], cards: set[tuple[float | None, float]]) -> str:
    plans = [one.plan for one in planned if one.plan is not None]
    lines = []
    if len(cards) == 1:
        capacity, context = next(iter(cards))
        if capacity is not None:
            lines.append(
                f"The card: {capacity + context:,.0f}, of which the context takes {context:,.0f} and tensors may take {capacity:,.0f}."
            )
    if any(capacity is None for capacity, _ in cards):
        lines.append("No card's size is known, so nothing is said to fit: name one, as device=cuda_4gb or device.capacity_mib=6144.")
    lines.append(
        "Phases: highest allocated (tensors, and what kernels keep). Reserved: highest of the allocator's segments. Left: what of the card "
        "holds nothing at the highest moment. Of it: parameters / gradients / optimizer state / kernels' workspace / other, then. "
        "Relative cost: predicted time of a training window with its share of validation and policy, by operations, bytes and data "
        "sheets. Tight: fits as rehearsed, and not on a card 6 % smaller."
    )
    lines += sorted({line for plan in plans for line in plan.assumed})
    return "\n".join(lines)


def print_plans(planned: Sequence[Planned], console: Console) -> None:
    if any(one.plan is not None for one in planned):
        console.print(plans_table(planned, console.width))
    keys = varying(planned) if len(planned) > 1 else list(planned[0].choices)
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for one in planned:
        if one.refused is not None:
            reasons[one.refused].append(" ".join(f"{key}={one.choices[key]}" for key in keys if key in one.choices))
    for reason, which in reasons.items():
        console.print(f"\nrefused: {'; '.join(which)}\n  {reason}", highlight=False, markup=False, soft_wrap=True)


def as_records(planned: Sequence[Planned]) -> list[dict[str, Any]]:
    """Each plan as plain values, sizes in MiB."""
    costs = relative_costs(planned)
    return [_record(one, costs.get(index)) for index, one in enumerate(planned)]


def _record(one: Planned, cost: float | None) -> dict[str, Any]:
    plan = one.plan
    if plan is None:
        return {"choices": one.choices, "outcome": "refused", "refused": one.refused}
    return {
        "choices": one.choices,
        "outcome": plan.verdict.value,
        "out_of_memory_in": plan.out_of_memory_in,
        "parameters": plan.parameters,
        "capacity_mib": plan.capacity_mib,
        "context_mib": plan.context_mib,
        "reserved_mib": plan.reserved_mib,
        "left_mib": plan.left_mib,
        "host_peak_mib": plan.host_peak_mib,
        "relative_cost": cost,
        "phases": {
            peak.phase: {"allocated_mib": peak.allocated_mib, "reserved_mib": peak.reserved_mib, "makeup_mib": peak.makeup_mib}
            for peak in plan.peaks
        },
        "assumed": list(plan.assumed),
    }


def write_json(planned: Sequence[Planned], path: Path) -> None:
    path.write_text(json.dumps(as_records(planned), indent=1) + "\n")


def write_csv(planned: Sequence[Planned], path: Path) -> None:
    """One row a combination; phases and kinds as columns such as validation_allocated_mib and later_steps_gradients_mib."""
    rows = [_flat(record) for record in as_records(planned)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = {**record["choices"], **{key: value for key, value in record.items() if key not in ("choices", "phases", "assumed")}}
    for phase, figures in record.get("phases", {}).items():
        name = phase.replace(" ", "_")
        flat |= {f"{name}_{key}": figures[key] for key in ("allocated_mib", "reserved_mib")}
        flat |= {f"{name}_{kind.replace(' ', '_')}_mib": mib for kind, mib in figures["makeup_mib"].items()}
    return flat


DRAWN = (FIRST, LATER, "validation")
CONTEXT, SEGMENTS, CARD, OUT = "#8a8f98", "#1b2a4a", "#b00020", "#b00020"


def draw_plans(planned: Sequence[Planned], path: Path) -> None:
    """A bar a phase, stacked by kind on the context, with the segments as a mark, against the card. A refused one has none."""
    keys = varying(planned)
    drawn = [(one, one.plan) for one in planned if one.plan is not None]
    phases = DRAWN if len(drawn) <= 24 else ("highest",)  # of many, the phase that takes most alone
    figure, axes = new_figure(width=10.5, height=1.4 + 0.22 * len(phases) * len(drawn) + 0.12 * len(drawn))
    row, ticks = 0.0, []
    for one, plan in drawn:
        first = row
        for phase in phases:
            peak = plan.highest if phase == "highest" else next((peak for peak in plan.peaks if peak.phase == phase), None)
            if peak is not None:
                _bar(axes, row, plan, peak, phase)
            row += 1.0
        name = ", ".join(
            value if key in ("model", "batch", "policy") else f"{key}={value}" for key in keys for value in [one.choices.get(key, "-")]
        )
        ticks.append(((first + row - 1.0) / 2, name or "as configured"))
        row += 0.6
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(row - 0.9, -0.8)
    _capacity(axes, [plan for _, plan in drawn])
    axes.set_xlabel("MiB of the card" if all(plan.capacity_mib for _, plan in drawn) else "MiB")
    for kind, color in (("context", CONTEXT), *KIND_COLORS.items()):
        axes.barh(0, 0, color=color, label=kind)
    axes.plot([], [], "|", color=SEGMENTS, markersize=9, label="segments reserved")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.9 / figure.get_figheight()), frameon=False, fontsize=8, ncols=7)
    figure.savefig(path, dpi=130)


def _bar(axes: Axes, row: float, plan: Plan, peak: PhasePeak, phase: str) -> None:
    axes.barh(row, plan.context_mib, height=0.8, color=CONTEXT)
    left = plan.context_mib
    for kind, color in KIND_COLORS.items():
        mib = peak.makeup_mib.get(kind, 0.0)
        axes.barh(row, mib, left=left, height=0.8, color=color)
        left += mib
    reserved = plan.context_mib + peak.reserved_mib
    axes.plot([reserved, reserved], [row - 0.4, row + 0.4], color=SEGMENTS, linewidth=1.2)
    failed = plan.out_of_memory_in is not None and (phase == "highest" or plan.of_run_phase(plan.out_of_memory_in) in (peak,))
    words = f"{phase if phase != 'highest' else peak.phase.replace('_', ' ')} {left:,.0f}"
    axes.annotate(
        words + (": out of memory" if failed else ""),
        (max(left, reserved), row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=OUT if failed else "#333333",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )


def _capacity(axes: Axes, plans: Sequence[Plan]) -> None:
    highest = max(plan.context_mib + max(plan.reserved_mib, plan.highest.live_mib) for plan in plans)
    cards = sorted({plan.capacity_mib + plan.context_mib for plan in plans if plan.capacity_mib is not None})
    shown = [card for card in cards if card < 3 * highest]
    for card in shown:
        axes.axvline(card, color=CARD, linestyle="--", linewidth=1)
        axes.text(card, 1.0, f"card {card:,.0f}", transform=axes.get_xaxis_transform(), va="bottom", ha="center", color=CARD, fontsize=8)
    axes.set_xlim(0, 1.32 * max([highest, *shown]))
