"""Opening the MLflow store: a SQLite file in a folder that can be moved as one, or a server."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from filelock import FileLock

from tft_exp.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


@dataclass(frozen=True)
class Store:
    """An open store and the experiment in it."""

    client: MlflowClient
    experiment: Experiment
    uri: str
    home: Path

    @property
    def experiment_id(self) -> str:
        return str(self.experiment.experiment_id)


def store_uri(uri: str | None, home: str) -> str:
    """The tracking URI: the one given, or the SQLite file in the folder `home`."""
    return uri if uri is not None else f"sqlite:///{Path(home).resolve() / 'mlflow.db'}"


def open_store(uri: str | None, home: str, experiment: str, *, create: bool = True) -> Store:
    """Open the store and its experiment; with `create`, make what is missing.

    Raises TrackingError where the store cannot be reached, or `create` is false and there is nothing to read.
    """
    folder = Path(home).resolve()
    if uri is None:
        if not create and not (folder / "mlflow.db").exists():
            raise TrackingError(f"there are no runs in {folder}", where="tracking.home", mend="train first: tft-exp train")
        folder.mkdir(parents=True, exist_ok=True)
        # Two processes that create the tables at once fail both ("duplicate column name").
        with FileLock(folder / ".mlflow.lock"):
            return _open(store_uri(None, home), experiment, folder, create, str(folder / "artifacts"))
    return _open(uri, experiment, folder, create, None)


def _open(uri: str, experiment: str, home: Path, create: bool, artifacts: str | None) -> Store:
    # A person waits for the answer of a wrong address; MLflow's own five tries take minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    # The tables' migrations are of no interest to the person who trains.
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            if not create:
                names = ", ".join(sorted(e.name for e in client.search_experiments(view_type=ViewType.ACTIVE_ONLY)))
                raise TrackingError(
                    f"there is no experiment {experiment!r} in {uri}", where="tracking.experiment", mend=f"experiments there: {names}"
                )
            found = client.get_experiment(client.create_experiment(experiment, artifact_location=artifacts))
    except MlflowException as error:
        raise TrackingError(f"the MLflow store {uri} cannot be opened: {str(error).splitlines()[0]}", where="tracking.uri") from error
    if found.lifecycle_stage == "deleted":
        raise TrackingError(
            f"the experiment {experiment!r} was deleted in {uri}",
            where="tracking.experiment",
            mend="choose another name, or restore it in MLflow",
        )
    return Store(client, found, uri, home)


def mend_stale_runs(store: Store) -> int:
    """Set runs of this machine that say RUNNING but whose process is gone to KILLED, and tell how many they were.

    A process that the kernel kills cannot say so itself, and MLflow would show it as running for ever.
    """
    stale = store.client.search_runs(
        [store.experiment_id], filter_string=f"attributes.status = 'RUNNING' and tags.host = '{socket.gethostname()}'", max_results=1000
    )
    gone = [run for run in stale if not _alive(run.data.tags.get("pid", ""), run.data.tags.get("process_started", ""))]
    for run in gone:
        store.client.set_tag(run.info.run_id, "outcome", "killed")
        store.client.set_terminated(run.info.run_id, status="KILLED")
    return len(gone)


def process_tags() -> dict[str, str]:
    """Who writes this run: enough to know later whether the process still lives."""
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": str(process.pid), "process_started": f"{process.create_time():.2f}"}


def _alive(pid: str, started: str) -> bool:
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == started
    except (ValueError, psutil.NoSuchProcess):
        return False
