"""What a run recorded over time: its losses by epoch, and its memory by phase."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from tft_exp.tracking.runs import RunRow
from tft_exp.tracking.store import Store


@dataclass(frozen=True)
class Moment:
    """A phase of an epoch: seconds, and MiB at its start, end and peak, of which `kinds` is the make-up where it is known."""

    epoch: int
    phase: str
    seconds: float
    start_mib: float
    end_mib: float
    peak_mib: float
    kinds: dict[str, float]
    completed: bool


@dataclass(frozen=True)
class Curves:
    """Validation loss by epoch, from 1, and the memory's timeline; either may be empty."""

    losses: dict[int, float]
    moments: list[Moment]


def load_curves(store: Store, runs: Sequence[RunRow]) -> dict[str, Curves]:
    """By run. A run without a timeline (it failed before one) has none."""
    return {run.run_id: Curves(_losses(store, run), _moments(store, run)) for run in runs}


def _losses(store: Store, run: RunRow) -> dict[int, float]:
    if "val/loss" not in run.metrics:
        return {}
    return {metric.step: metric.value for metric in store.client.get_metric_history(run.run_id, "val/loss")}


def _moments(store: Store, run: RunRow) -> list[Moment]:
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = store.client.download_artifacts(run.run_id, "timeline/timeline.csv", folder)
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
        except (MlflowException, OSError):
            return []
    quantity = run.tags.get("memory_quantity", "")
    return [_moment(row, quantity) for row in rows]


KINDS = ("parameters", "gradients", "optimizer_state", "kernel_workspace", "other")


def _moment(row: dict[str, str], quantity: str) -> Moment:
    start, end, peak = (float(row[f"{edge}_{quantity}_mib"]) for edge in ("start", "end", "peak"))
    kinds = {kind.replace("_", " "): float(row[f"peak_{kind}_mib"]) for kind in KINDS if row.get(f"peak_{kind}_mib")}
    return Moment(int(row["epoch"]), row["phase"], float(row["seconds"]), start, end, peak, kinds, row["completed"] == "True")
