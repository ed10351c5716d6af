"""Reads runs back from MLflow."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from tft_exp.errors import TrackingError
from tft_exp.tracking.store import Store


@dataclass(frozen=True)
class RunRow:
    """One run as recorded. `metrics` holds the last value of each metric, `started` milliseconds since 1970."""

    run_id: str
    name: str
    status: str
    started: int
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def outcome(self) -> str:
        return self.tags.get("outcome", "running")


def finished_runs(store: Store, fingerprints: Collection[str], sweep_id: str) -> dict[str, RunRow]:
    """Finished runs by fingerprint, the latest of each, entered into the sweep `sweep_id` too."""
    found: dict[str, RunRow] = {}
    for row in _search(store, "tags.fingerprint LIKE '%' AND attributes.status = 'FINISHED'"):
        fingerprint = row.tags["fingerprint"]
        if fingerprint in fingerprints and fingerprint not in found:
            found[fingerprint] = row
            sweeps = row.tags.get("sweep_id", "").split()
            if sweep_id not in sweeps:
                store.client.set_tag(row.run_id, "sweep_id", " ".join([*sweeps, sweep_id]))
    return found


@dataclass(frozen=True)
class RecordedRun:
    """All that a run recorded of itself: `histories` holds each metric's steps and values, `resolved` its configuration."""

    run_id: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    overrides: list[str]
    resolved: str
    histories: dict[str, list[tuple[int, float]]]


def load_recorded(store: Store, run_id: str) -> RecordedRun:
    """One run with its configuration and every metric's history. Raises TrackingError where it or its configuration is missing."""
    from mlflow.exceptions import MlflowException

    try:
        run = store.client.get_run(run_id)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(store.client.download_artifacts(run_id, "config", folder))
            overrides, resolved = OmegaConf.create((path / "overrides.yaml").read_text()), (path / "resolved.yaml").read_text()
    except (MlflowException, OSError) as error:
        message = f"the run {run_id!r} with its configuration cannot be read: {str(error).splitlines()[0]}"
        raise TrackingError(message, where=store.uri, mend="tft-exp compare --csv FILE lists the runs' ids") from error
    histories = {
        name: [(metric.step, metric.value) for metric in store.client.get_metric_history(run_id, name)] for name in run.data.metrics
    }
    return RecordedRun(run_id, run.data.params, run.data.tags, [str(one) for one in overrides], resolved, histories)


def load_sweep(store: Store, sweep_id: str | None = None) -> tuple[str, list[RunRow]]:
    """The runs of a sweep in the order of its jobs; of the latest sweep where none is named. Raises TrackingError."""
    if sweep_id is None:
        latest = _search(store, "tags.sweep_id LIKE '%'", most=1)
        if not latest:
            raise TrackingError(
                f"there is no sweep in the experiment {store.experiment.name!r}",
                where=store.uri,
                mend="run one: tft-exp train experiment=demo",
            )
        sweep_id = latest[0].tags["sweep_id"].split()[-1]
    rows = [row for row in _search(store, f"tags.sweep_id LIKE '%{sweep_id}%'") if "kind" not in row.tags] if "'" not in sweep_id else []
    if not rows:
        raise TrackingError(
            f"there is no sweep {sweep_id!r} in the experiment {store.experiment.name!r}",
            where=store.uri,
            mend="tft-exp compare without a name shows the latest one",
        )
    return sweep_id, sorted(rows, key=lambda row: int(row.tags.get("job", "0")))


def load_runs(store: Store, what: str | None) -> tuple[str, list[RunRow]]:
    """A title, and the runs of a sweep (the latest where `what` is None), of an experiment, or that a filter of MLflow's
    finds. Raises TrackingError."""
    from mlflow.exceptions import MlflowException

    if what is not None and re.search(r"[=<>]| LIKE | IN ", what, re.IGNORECASE):
        try:
            found = [row for row in _search(store, what) if "kind" not in row.tags]
        except MlflowException as error:
            raise TrackingError(
                f"MLflow cannot read the filter {what!r}: {error.message}", mend="such as \"params.model = 'large'\""
            ) from error
        if not found:
            raise TrackingError(f"no run has {what}", where=store.uri)
        return f"Runs with {what}", found[::-1]
    if what is not None and (named := store.client.get_experiment_by_name(what)) is not None:
        rows = [row for row in _search(replace(store, experiment=named), "") if "kind" not in row.tags]
        if not rows:
            raise TrackingError(f"the experiment {what!r} has no runs", where=store.uri)
        return f"Experiment {what}", rows[::-1]
    sweep_id, rows = load_sweep(store, what)
    return f"Sweep {sweep_id}", rows


def _search(store: Store, filter_string: str, most: int | None = None) -> list[RunRow]:
    rows: list[RunRow] = []
    token: str | None = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id],
            filter_string=filter_string,
            order_by=["attributes.start_time DESC"],
            max_results=most or 1000,
            page_token=token,
        )
        rows += [
            RunRow(
                run.info.run_id,
                run.info.run_name or "",
                run.info.status,
                run.info.start_time or 0,
                run.data.params,
                run.data.tags,
                run.data.metrics,
            )
            for run in page
        ]
        token = page.token
        if not token or (most is not None and len(rows) >= most):
            return rows[:most]
