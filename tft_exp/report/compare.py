"""Runs side by side: grouped by their choices, with seeds as repetitions."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from tft_exp.tracking.runs import RunRow

# What repeats an experiment rather than changing it.
REPETITION = "seed"
TABLE_WIDTH = 190  # what all columns need


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone. `choice` holds the parameters in which the groups differ."""

    choice: tuple[tuple[str, str], ...]
    runs: tuple[RunRow, ...]

    @property
    def label(self) -> str:
        return ", ".join(value if key == "policy" else f"{key.rpartition('.')[2]}={value}" for key, value in self.choice)

    def values(self, metric: str) -> list[float]:
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


def group_runs(runs: Sequence[RunRow]) -> list[Group]:
    """Groups in order of first appearance; a parameter that only some runs have counts as differing."""
    names = {name for run in runs for name in run.params if name != REPETITION}
    varying = sorted(name for name in names if len({run.params.get(name) for run in runs}) > 1)
    # The policy first: it is what the comparison is about.
    keys = sorted(varying or ["policy"], key=lambda key: (key != "policy", key))
    found: dict[tuple[tuple[str, str], ...], list[RunRow]] = {}
    for run in runs:
        found.setdefault(tuple((key, run.params.get(key, "-")) for key in keys), []).append(run)
    return [Group(choice, tuple(members)) for choice, members in found.items()]


def quantity_of(runs: Sequence[RunRow]) -> str:
    """What the memory figures are: allocated or rss; both, where devices of both kinds are compared."""
    return "/".join(sorted({run.tags.get("memory_quantity", "?") for run in runs}))


def peak(group: Group, phase: str) -> float | None:
    """The highest peak of a phase over the group's runs, in MiB."""
    values = [
        value
        for run in group.runs
        for value in [run.metrics.get(f"summary/{phase}_peak_{run.tags.get('memory_quantity')}_mib")]
        if value is not None
    ]
    return max(values, default=None)


# Columns in the order in which a terminal that is too narrow goes without them.
FIRST_TO_GO = ("q-risk", "optimizer", "claimed", "skill", "seconds")


def comparison_table(title: str, groups: Sequence[Group], width: int) -> Table:
    """The comparison for a terminal of `width` characters; a narrow one gets fewer columns. A figure that no run of a group
    measured is a dash."""
    columns = _columns(quantity_of([run for group in groups for run in group.runs]))
    table = _table(title, groups, columns)
    for heading in FIRST_TO_GO:
        if Console(width=10 * width).measure(table).minimum <= width:
            break
        columns = {name: figure for name, figure in columns.items() if not name.startswith(heading)}
        table = _table(title, groups, columns)
    return table


def _columns(quantity: str) -> dict[str, Callable[[Group], str]]:
    return {
        f"peak {quantity}\ntrain / val, MiB": lambda g: f"{_number(peak(g, 'train'), '.0f')} / {_number(peak(g, 'validation'), '.0f')}",
        "claimed > freed\nMiB": lambda g: _change(g, "audit/claimed_mib", "audit/freed_mib"),
        "audit": _verdicts,
        "optimizer state\ntrain > val, MiB": lambda g: _change(g, "optimizer_state_mib", "state_in_validation_mib"),
        "seconds\nan epoch": lambda g: _median(g, "summary/epoch_seconds", ".2f"),
        "validation loss\nmean ± sd": lambda g: mean_and_sd(g.values("summary/val_loss")),
        "skill\n%": lambda g: _percent(g.values("summary/skill")),
        "q-risk\nP10 / P50 / P90": lambda g: _risks(g, "val"),
    }


def _table(title: str, groups: Sequence[Group], columns: Mapping[str, Callable[[Group], str]]) -> Table:
    runs = [run for group in groups for run in group.runs]
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    longest = max(len(word) for group in groups for word in group.label.split())
    table.add_column("policy" if groups[0].choice[0][0] == "policy" else "choice", min_width=max(14, longest))
    table.add_column("runs", min_width=19)
    for heading, figure in columns.items():
        lines = [*heading.split("\n"), *(figure(group) for group in groups)]
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(map(len, lines)))
    for group in groups:
        table.add_row(group.label, outcomes(group), *(figure(group) for figure in columns.values()))
    naive = sorted({run.tags["best_naive"] for run in runs if "best_naive" in run.tags})
    losses = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(losses) == 1 and len(naive) == 1:
        known = {"validation": f"{losses.pop():.4f}", "skill": "0.0", "q-risk": _risks(groups[0], "naive")}
        table.add_section()
        table.add_row("naive forecast", naive[0], *(known.get(heading.split()[0], "") for heading in columns))
    sources = "; ".join(sorted({run.tags.get("memory_source", "?") for run in runs}))
    table.caption = (
        f"Memory: {sources}. Peaks: highest of all runs and epochs. Claimed and freed: by the policy, before validation, and the audit's "
        "verdict on it. State: bytes of the optimizer's state on the device after training, and those still held during validation. "
        "OOM: out of memory. Skill: loss saved over the best naive forecast. Other figures: medians, or means, over runs."
    )
    return table


def print_table(table: Table) -> None:
    """A table on standard output; into a pipe or a file at its full width."""
    (Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)).print(table)


def print_comparison(title: str, groups: Sequence[Group]) -> None:
    """The table on standard output; into a pipe or a file at its full width."""
    console = Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)
    console.print(comparison_table(title, groups, console.width))


def _change(group: Group, before: str, after: str) -> str:
    one, other = (_median(group, f"summary/{name}", ".2f") for name in (before, after))
    return "-" if (one, other) == ("-", "-") else f"{one} > {other}"


def _verdicts(group: Group) -> str:
    found = sorted({run.tags["audit"] for run in group.runs if "audit" in run.tags})
    return ", ".join("-" if verdict == "nothing claimed" else verdict for verdict in found) or "-"


def outcomes(group: Group) -> str:
    """Such as `2 finished`, or `1 finished, 1 OOM in validation`."""
    named = Counter(
        f"OOM in {run.tags.get('out_of_memory_phase', '?').replace('_', ' ')}" if run.outcome == "out_of_memory" else run.outcome
        for run in group.runs
    )
    return ", ".join(f"{count} {name}" for name, count in named.items())


def mean_and_sd(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


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
