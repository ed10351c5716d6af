"""The comparison as one page that needs no network: recommendation, table, figures, and the verdict on every run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tft_exp.report.charts import curves_figure, pareto_figure, peaks_figure
from tft_exp.report.groups import Group, capacity_mib, highest_peak, mean_and_sd, outcomes, peak, quantity_of
from tft_exp.report.pairs import CONFIDENCE, difference_to_reference, reference_of
from tft_exp.report.verdict import pareto, recommend
from tft_exp.tracking.curves import Curves, Moment
from tft_exp.tracking.runs import RunRow

TEMPLATE = Path(__file__).with_name("page.html")


def render_page(title: str, groups: Sequence[Group], curves: Mapping[str, Curves], baseline: str | None = None) -> str:
    """The whole page. `baseline` is the policy that differences are taken to; keep, or the first, where it is None."""
    from jinja2 import Environment
    from markupsafe import Markup

    runs = [run for group in groups for run in group.runs]
    reference = reference_of(groups, baseline)
    recommendation = recommend(groups)
    best = pareto(groups)
    headings = [
        "choice",
        "runs",
        f"peak train / val, {quantity_of(runs)} MiB",
        "of the card",
        "audit",
        "s an epoch",
        "validation loss",
        "difference",
        "",
    ]
    rows = [{"cells": _cells(group, groups, reference, group in best), "chosen": group is recommendation.group} for group in groups]
    environment = Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text()).render(
        title=title,
        counts=f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} of {len(groups)} {'choice' if len(groups) == 1 else 'choices'}",
        sources="; ".join(sorted({run.tags.get("memory_source", "not measured") for run in runs})),
        recommendation=recommendation.text,
        headings=headings,
        rows=rows,
        reference=reference or groups[0].label,
        confidence=f"{CONFIDENCE:.0%}",
        stacked=any(moment.kinds for one in curves.values() for moment in one.moments),
        peaks=Markup(peaks_figure(groups, curves)),
        scatter=Markup(pareto_figure(groups)),
        curves=Markup(curves_figure(groups, curves)),
        runs=[_told(run, curves[run.run_id]) for run in runs],
    )


def _cells(group: Group, groups: Sequence[Group], reference: str | None, best: bool) -> list[str]:
    train, validation = (peak(group, phase) for phase in ("train", "validation"))
    top, capacity, seconds = highest_peak(group), capacity_mib(groups), group.values("summary/epoch_seconds")
    verdicts = sorted({run.tags["audit"] for run in group.runs if "audit" in run.tags})
    spread = f" ({min(seconds):.2f} to {max(seconds):.2f})" if len(seconds) > 1 else ""
    return [
        group.label,
        outcomes(group),
        " / ".join("-" if value is None else f"{value:,.0f}" for value in (train, validation)),
        f"{top / capacity:.0%}" if top is not None and capacity else "-",
        ", ".join(verdicts) or "-",
        f"{statistics.median(seconds):.2f}{spread}" if seconds else "-",
        mean_and_sd(group.values("summary/val_loss")),
        str(difference_to_reference(group, groups, reference)),
        "*" if best else "",
    ]


def _told(run: RunRow, curves: Curves) -> dict[str, str]:
    """A run in the form of the report that the project began with."""
    first: dict[str, Moment] = {}
    claimed, freed = run.metrics.get("summary/audit/claimed_mib"), run.metrics.get("summary/audit/freed_mib")
    for moment in curves.moments:
        first.setdefault(moment.phase, moment)
    train, policy = first.get("train"), first.get("before_validation")
    moments = "-"
    if train is not None and policy is not None:
        moments = (
            f"{train.start_mib:,.0f} > {policy.start_mib:,.0f} ({policy.start_mib - train.start_mib:+,.0f})"
            f" > {policy.end_mib:,.0f} ({policy.end_mib - policy.start_mib:+,.0f})"
        )
    verdict = run.tags.get("audit", "-")
    outcome = run.outcome.replace("_", " ")
    if "out_of_memory_phase" in run.tags:
        outcome += f" in {run.tags['out_of_memory_phase'].replace('_', ' ')}"
    return {
        "name": run.name,
        "outcome": outcome,
        "tone": "" if run.outcome == "finished" else "bad",
        "moments": moments,
        "claim": "-" if claimed is None or freed is None else f"{claimed:,.1f} > {freed:,.1f}",
        "audit": run.tags.get("audit_finding", verdict) if verdict in ("partial", "nothing freed") else verdict,
        "audit_tone": "bad" if verdict in ("partial", "nothing freed") else "good" if verdict == "verified" else "",
    }
