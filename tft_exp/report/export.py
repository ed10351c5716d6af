"""The compared runs as a table for other programs: a row a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tft_exp.tracking.runs import RunRow

if TYPE_CHECKING:
    import pandas as pd

TAGS = ("sweep_id", "job", "audit", "out_of_memory_phase", "device", "memory_source", "capacity_mib", "fingerprint", "git_commit")


def runs_frame(runs: Sequence[RunRow]) -> pd.DataFrame:
    """A row a run: run_id, name, outcome, status, each parameter as `params.NAME`, some tags, each `summary/NAME` as `NAME`.
    What a run did not measure is empty."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for run in runs:
        row: dict[str, object] = {"run_id": run.run_id, "name": run.name, "outcome": run.outcome, "status": run.status}
        row |= {f"params.{key}": value for key, value in sorted(run.params.items())}
        row |= {key: run.tags.get(key) for key in TAGS}
        row |= {key.removeprefix("summary/"): value for key, value in sorted(run.metrics.items()) if key.startswith("summary/")}
        rows.append(row)
    return pd.DataFrame(rows)


def write_csv(runs: Sequence[RunRow], path: Path) -> None:
    runs_frame(runs).to_csv(path, index=False)


def write_json(runs: Sequence[RunRow], path: Path) -> None:
    runs_frame(runs).to_json(path, orient="records", indent=1)


def write_parquet(runs: Sequence[RunRow], path: Path) -> None:
    runs_frame(runs).to_parquet(path, index=False)
