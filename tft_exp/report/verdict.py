"""Which of the compared choices no other beats, and which one to take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tft_exp.report.groups import Group, capacity_mib, highest_peak, outcomes
from tft_exp.report.pairs import by_seed, paired_difference

FASTER = 0.05  # seconds an epoch that differ by less are called equal: machines are noisier than that
SHOWN = 4  # choices that are left out, by name


@dataclass(frozen=True)
class Recommendation:
    """A choice and its reason, in sentences; `group` is None where no choice finished with a claim that stands."""

    group: Group | None
    text: str


def usable(group: Group) -> bool:
    """Whether every run finished, and none claimed to free what it did not."""
    false = any(run.tags.get("audit") in ("partial", "nothing freed") for run in group.runs)
    return all(run.outcome == "finished" for run in group.runs) and not false and bool(group.values("summary/val_loss"))


def objectives(group: Group) -> tuple[float, float, float] | None:
    """Highest peak in MiB, median seconds an epoch and mean validation loss; None where one was not measured."""
    top, seconds, losses = highest_peak(group), group.values("summary/epoch_seconds"), group.values("summary/val_loss")
    return None if top is None or not seconds or not losses else (top, statistics.median(seconds), statistics.fmean(losses))


def pareto(groups: Sequence[Group]) -> list[Group]:
    """Usable groups that no other usable one equals or beats in memory, time and loss at once, and beats in one."""
    found = [(group, values) for group in groups if usable(group) and (values := objectives(group)) is not None]

    def beaten(values: tuple[float, float, float]) -> bool:
        return any(other != values and all(theirs <= ours for theirs, ours in zip(other, values, strict=True)) for _, other in found)

    return [group for group, values in found if not beaten(values)]


def recommend(groups: Sequence[Group]) -> Recommendation:
    """Of the usable choices whose loss is not seen to be worse than the best one's: the fastest, and of equally fast ones that
    with the lowest peak. One that loses to the naive forecast is taken only where all do. Not worse: the 95 % interval of the
    differences paired by seed reaches down to zero, or, with too few pairs for one, the mean is not higher."""
    candidates = [(group, values) for group in groups if usable(group) and (values := objectives(group)) is not None]
    if not candidates:
        return Recommendation(None, "No choice finished in every run with a claim that stands.")
    naive = [value for group in groups for value in group.values("summary/naive_loss")]
    skilled = [candidate for candidate in candidates if naive and candidate[1][2] < min(naive)]
    candidates = skilled or candidates
    best, best_values = min(candidates, key=lambda candidate: candidate[1][2])
    level = [(group, values) for group, values in candidates if group is best or _not_worse(group, best)]
    fastest = min(values[1] for _, values in level)
    quick = [(group, values) for group, values in level if values[1] <= fastest * (1 + FASTER)]
    chosen, (top, seconds, loss) = min(quick, key=lambda candidate: candidate[1][0])
    runs = len(chosen.runs)
    text = f"Take {chosen.label}: it finished in {'its run' if runs == 1 else f'all {runs} runs'} with a peak of {top:,.0f} MiB"
    capacity = capacity_mib(groups)
    text += f" ({top / capacity:.0%} of {capacity:,.0f} MiB)" if capacity else ""
    text += f", {seconds:.2f} s an epoch and a validation loss of {loss:.4f}"
    if loss == best_values[2]:
        text += ", the lowest that was seen."
    else:
        text += f"; {best.label} had {best_values[2]:.4f}, a difference that the seeds do not show to be one."
    if naive and not skilled:
        text += f" But no choice beats the best naive forecast ({min(naive):.4f})."
    others = [f"{group.label} ({outcomes(group)}{_false_claim(group)})" for group in groups if not usable(group)]
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    return Recommendation(chosen, text + (f" Left out: {', '.join(others[:SHOWN])}{more}." if others else ""))


def _not_worse(group: Group, best: Group) -> bool:
    difference = paired_difference(by_seed(group, "summary/val_loss"), by_seed(best, "summary/val_loss"))
    if difference is None:
        return statistics.fmean(group.values("summary/val_loss")) <= statistics.fmean(best.values("summary/val_loss"))
    return difference.low <= 0.0


def _false_claim(group: Group) -> str:
    verdicts = {run.tags.get("audit") for run in group.runs} & {"partial", "nothing freed"}
    return f"; audit: {', '.join(sorted(str(verdict) for verdict in verdicts))}" if verdicts else ""
