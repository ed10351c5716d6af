"""Runs grouped by their choices, with seeds as repetitions, and the figures of a group."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tft_exp.tracking.runs import RunRow

# What repeats an experiment rather than changing it.
REPETITION = "seed"


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


def highest_peak(group: Group) -> float | None:
    """The highest of all phases and runs, MiB."""
    return max((value for phase in ("train", "validation") if (value := peak(group, phase)) is not None), default=None)


def capacity_mib(groups: Sequence[Group]) -> float | None:
    """Of the device, MiB; None where it is not known, or not one."""
    found = {run.tags.get("capacity_mib") for group in groups for run in group.runs}
    only = found.pop() if len(found) == 1 else None
    return None if only is None else float(only)


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
