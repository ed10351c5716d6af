"""The comparison's table for a terminal."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tft_exp.report.groups import Group, capacity_mib, highest_peak, mean_and_sd, outcomes, peak, quantity_of
from tft_exp.report.pairs import CONFIDENCE, difference_to_reference, reference_of
from tft_exp.report.verdict import pareto

TABLE_WIDTH = 200  # what all columns need


# Columns in the order in which a terminal that is too narrow goes without them.
FIRST_TO_GO = ("q-risk", "claimed", "less", "skill", "seconds")


def comparison_table(title: str, groups: Sequence[Group], width: int, baseline: str | None = None) -> Table:
    """The comparison for a terminal of `width` characters; a narrow one gets fewer columns. A figure that no run of a group
    measured is a dash. `baseline` is the policy that differences are taken to; keep, or the first, where it is None."""
    columns = _columns(groups, baseline)
    table = _table(title, groups, columns)
    for heading in FIRST_TO_GO:
        if Console(width=10 * width).measure(table).minimum <= width:
            break
        columns = {name: figure for name, figure in columns.items() if not name.startswith(heading)}
        table = _table(title, groups, columns)
    return table


def _columns(groups: Sequence[Group], baseline: str | None) -> dict[str, Callable[[Group], str]]:
    quantity = quantity_of([run for group in groups for run in group.runs])
    capacity, policy = capacity_mib(groups), reference_of(groups, baseline)
    of_it = " (of room)" if capacity else ""

    def peaks(group: Group) -> str:
        share, highest = "", highest_peak(group)
        if capacity:
            share = f" ({highest / capacity:.0%})" if highest is not None else " (-)"
        return f"{_number(peak(group, 'train'), ',.0f')} / {_number(peak(group, 'validation'), ',.0f')}{share}"

    columns = {
        f"peak {quantity}\ntrain / val, MiB{of_it}": peaks,
        "claimed > freed\nMiB": lambda g: _change(g, "audit/claimed_mib", "audit/freed_mib"),
        "audit": _verdicts,
        "seconds an epoch\nmedian (range)": _seconds,
        "validation loss\nmean ± sd": lambda g: mean_and_sd(g.values("summary/val_loss")),
    }
    if len(groups) > 1:
        heading = f"less that of {policy or groups[0].label}\nby seed, {CONFIDENCE:.0%} interval"
        columns[heading] = lambda g: str(difference_to_reference(g, groups, policy))
    columns["skill\n%"] = lambda g: _percent(g.values("summary/skill"))
    columns["q-risk\nP10 / P50 / P90"] = lambda g: _risks(g, "val")
    return columns


def _table(title: str, groups: Sequence[Group], columns: Mapping[str, Callable[[Group], str]]) -> Table:
    runs = [run for group in groups for run in group.runs]
    unbeaten = pareto(groups)
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    longest = max(min(len(group.label), 24) for group in groups)
    longest = max(longest, *(len(word) for group in groups for word in group.label.split()))
    table.add_column("  policy" if groups[0].choice[0][0] == "policy" else "  choice", min_width=max(14, longest + 2))
    table.add_column("runs", min_width=10)
    for heading, figure in columns.items():
        lines = [*heading.split("\n"), *(figure(group) for group in groups)]
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(map(len, lines)))
    for group in groups:
        mark = "*" if group in unbeaten else " "
        table.add_row(f"{mark} {group.label}", outcomes(group), *(figure(group) for figure in columns.values()))
    naive = sorted({run.tags["best_naive"] for run in runs if "best_naive" in run.tags})
    losses = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(losses) == 1 and len(naive) == 1:
        known = {"validation": f"{losses.pop():.4f}", "skill": "0.0", "q-risk": _risks(groups[0], "naive")}
        table.add_section()
        table.add_row("  naive forecast", naive[0], *(known.get(heading.split()[0], "") for heading in columns))
    sources = "; ".join(sorted({run.tags.get("memory_source", "?") for run in runs}))
    table.caption = (
        f"Memory: {sources}. Peaks: highest of all runs and epochs. Claimed and freed: by the policy, before validation, and the audit's "
        "verdict on it. OOM: out of memory. Skill: loss saved over the best naive forecast. Other figures: medians, or means, over runs. "
        "*: no other choice that finished with a claim that stands is as good in peak, seconds and loss, and better in one."
    )
    return table


def print_table(table: Table) -> None:
    """A table on standard output; into a pipe or a file at its full width."""
    (Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)).print(table)


def print_comparison(title: str, groups: Sequence[Group], baseline: str | None = None) -> None:
    """As `comparison_table`, on standard output; into a pipe or a file at its full width."""
    console = Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)
    console.print(comparison_table(title, groups, console.width, baseline))


def _change(group: Group, before: str, after: str) -> str:
    one, other = (_median(group, f"summary/{name}", ".2f") for name in (before, after))
    return "-" if (one, other) == ("-", "-") else f"{one} > {other}"


def _verdicts(group: Group) -> str:
    found = sorted({run.tags["audit"] for run in group.runs if "audit" in run.tags})
    return ", ".join("-" if verdict == "nothing claimed" else verdict for verdict in found) or "-"


def _seconds(group: Group) -> str:
    values = group.values("summary/epoch_seconds")
    spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.2f}{spread}" if values else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _median(group: Group, metric: str, form: str) -> str:
    values = group.values(metric)
    return _number(statistics.median(values) if values else None, form)


def _percent(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values) * 100:+.1f}" if values else "-"


def _risks(group: Group, prefix: str) -> str:
    parts = [group.values(f"summary/{prefix}_q_risk_p{p}") for p in (10, 50, 90)]
    return " / ".join(f"{statistics.fmean(part):.3f}" if part else "-" for part in parts) if any(parts) else "-"
