"""Runs side by side: grouped by their choices, with seeds as repetitions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from tft_exp.tracking.runs import RunRow

# What repeats an experiment rather than changing it.
REPETITION = "seed"
TABLE_WIDTH = 150


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


def comparison_table(sweep_id: str, groups: Sequence[Group]) -> Table:
    """The comparison as a terminal shows it, within 110 columns. A figure that no run of a group measured is a dash."""
    runs = [run for group in groups for run in group.runs]
    quantity = quantity_of(runs)
    table = Table(title=f"Sweep {sweep_id}", title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("policy" if groups[0].choice[0][0] == "policy" else "choice", overflow="fold")
    table.add_column("runs")
    for heading in (
        f"peak {quantity}, MiB\ntrain / val",
        f"{quantity} freed\nMiB",
        "optimizer state\ntrain > val, MiB",
        "seconds\nan epoch",
        "validation loss\nmean ± sd",
        "skill\n%",
        "q-risk\nP10 / P50 / P90",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in groups:
        table.add_row(
            group.label,
            outcomes(group),
            f"{_number(peak(group, 'train'), '.0f')} / {_number(peak(group, 'validation'), '.0f')}",
            _median(group, "summary/freed_before_validation_mib", "+.2f"),
            f"{_median(group, 'summary/optimizer_state_mib', '.2f')} > {_median(group, 'summary/state_in_validation_mib', '.2f')}",
            _median(group, "summary/epoch_seconds", ".2f"),
            mean_and_sd(group.values("summary/val_loss")),
            _percent(group.values("summary/skill")),
            _risks(group, "val"),
        )
    naive = sorted({run.tags["best_naive"] for run in runs if "best_naive" in run.tags})
    losses = {value for group in groups for value in group.values("summary/naive_loss")}
    if len(losses) == 1 and len(naive) == 1:
        table.add_section()
        table.add_row(f"naive: {naive[0]}", "", "", "", "", "", f"{losses.pop():.4f}", "0.0", _risks(groups[0], "naive"))
    sources = "; ".join(sorted({run.tags.get("memory_source", "?") for run in runs}))
    table.caption = (
        f"Memory is {sources}. Peaks: highest of all runs and epochs. Freed: by the policy, before validation. "
        "State: bytes of the optimizer's state on the device after training, and those still held during validation. "
        "Skill: loss saved over the best naive forecast. Other figures: medians, or means, over runs."
    )
    return table


def wide_console() -> Console:
    """Standard output, never narrower than the table: a wrapped line can still be read, a cut figure cannot."""
    console = Console()
    return console if console.width >= TABLE_WIDTH else Console(width=TABLE_WIDTH)


def outcomes(group: Group) -> str:
    """Such as `2 finished`, or `1 finished, 1 out of memory in validation`."""
    named = Counter(
        f"out of memory in {run.tags.get('out_of_memory_phase', '?').replace('_', ' ')}" if run.outcome == "out_of_memory" else run.outcome
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
    return " / ".join(f"{statistics.fmean(part):.3f}" if part else "-" for part in parts)
