"""Differences to a reference policy, paired by seed, with their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from tft_exp.errors import TrackingError
from tft_exp.report.groups import REPETITION, Group

# What is compared: the metric, and its name in the table.
LOSSES = {"summary/last_val_loss": "last epoch", "summary/val_loss": "best epoch"}
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of a metric's paired differences to the reference, with a confidence interval; of the reference's mean too."""

    pairs: int
    mean: float
    low: float
    high: float
    reference_mean: float

    def __str__(self) -> str:
        same = self.low == self.high == 0.0
        return self.words if same else f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    @property
    def words(self) -> str:
        """What the interval says of a loss."""
        if self.low == self.high == 0.0:
            return "the same, bit for bit"
        return "lower" if self.high < 0 else "higher" if self.low > 0 else "no difference seen"


def paired_difference(values: dict[str, float], reference: dict[str, float]) -> Difference | None:
    """`values` less `reference`, both by seed, over the seeds that both have; None for fewer than two.

    The interval is Student's t of the differences (scipy.stats.ttest_rel).
    """
    from scipy.stats import ttest_rel

    seeds = sorted(values.keys() & reference.keys())
    if len(seeds) < 2:
        return None
    ours, theirs = [values[seed] for seed in seeds], [reference[seed] for seed in seeds]
    mean = sum(one - other for one, other in zip(ours, theirs, strict=True)) / len(seeds)
    if len({one - other for one, other in zip(ours, theirs, strict=True)}) == 1:
        low = high = mean  # no spread, of which no interval could be made
    else:
        low, high = ttest_rel(ours, theirs).confidence_interval(CONFIDENCE)
    return Difference(len(seeds), mean, float(low), float(high), sum(theirs) / len(seeds))


def differences_table(groups: Sequence[Group], policy: str) -> Table:
    """Every group beside the one that differs from it in the policy alone. Raises TrackingError where there is none."""
    references = {_others(group): group for group in groups if dict(group.choice).get("policy") == policy}
    if not references:
        there = ", ".join(sorted({dict(group.choice).get("policy", "-") for group in groups}))
        raise TrackingError(f"no run of the sweep has policy={policy}", where="--baseline", mend=f"policies there: {there}")
    table = Table(
        title=f"Validation loss less that of policy={policy}, paired by seed (mean, {CONFIDENCE:.0%} interval)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("choice")
    table.add_column("pairs", justify="right")
    for name in LOSSES.values():
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("is", no_wrap=True)
    for group in groups:
        reference = references.get(_others(group))
        if reference is None or reference is group:
            continue
        found = [paired_difference(by_seed(group, metric), by_seed(reference, metric)) for metric in LOSSES]
        cells = [cell for difference in found for cell in _cells(difference)]
        table.add_row(group.label, str(max((d.pairs for d in found if d is not None), default=0)), *cells)
    return table


def _others(group: Group) -> tuple[tuple[str, str], ...]:
    return tuple(part for part in group.choice if part[0] != "policy")


def by_seed(group: Group, metric: str) -> dict[str, float]:
    return {run.params.get(REPETITION, "-"): run.metrics[metric] for run in group.runs if metric in run.metrics}


def _cells(difference: Difference | None) -> tuple[str, str]:
    if difference is None:
        return "-", "too few pairs"
    percent = difference.mean / difference.reference_mean
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}] ({percent:+.1%})", difference.words


def reference_of(groups: Sequence[Group], asked: str | None) -> str | None:
    """The policy that differences are taken to: the one asked for, else keep, else the first, of those that have a loss; None
    where no policy differs."""
    losing = [dict(group.choice) for group in groups if group.values("summary/val_loss")]
    policies = [choice["policy"] for choice in losing if "policy" in choice]
    return asked or ("keep" if "keep" in policies else policies[0] if policies else None)


def difference_to_reference(group: Group, groups: Sequence[Group], policy: str | None) -> Difference | str:
    """Validation loss less that of the group that differs in the policy alone, or in words why there is no difference: `group` is
    that reference, or it has none, or too few seeds are in both. Where no policy differs (None) the first group is the reference."""
    if policy is None:
        reference = groups[0]
    else:
        found = [g for g in groups if dict(g.choice).get("policy") == policy and _others(g) == _others(group)]
        if not found:
            return "-"
        reference = found[0]
    if reference is group or not group.values("summary/val_loss"):
        return ""
    difference = paired_difference(by_seed(group, "summary/val_loss"), by_seed(reference, "summary/val_loss"))
    return "too few pairs" if difference is None else difference
