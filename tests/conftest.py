"""Shared by all tests: the real command line, and a fresh MLflow store without its slow first creation."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _libraries_set_aside() -> Iterator[None]:
    """As in a run (experiment._attempt): garbage is looked for among what a test made, not among the libraries' objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store with MLflow's tables and nothing in them; creating the tables takes MLflow some ten seconds."""
    folder = tmp_path_factory.mktemp("store")
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    client.search_experiments()
    return folder / "mlflow.db"


def new_home(folder: Path, empty_store: Path) -> Path:
    home = folder / "mlruns"
    home.mkdir()
    shutil.copy(empty_store, home / "mlflow.db")
    return home


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Path:
    """A home of runs, as `tracking.home` names it."""
    return new_home(tmp_path, empty_store)


def tft_exp(*arguments: str, cwd: Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real command line in a process of its own, in `cwd`."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True, timeout=timeout
    )


def command(*arguments: str) -> Sequence[str]:
    return [str(Path(sys.executable).parent / "tft-exp"), *arguments]


def clean_environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_", "COMP_"))}
    return {**kept, "COLUMNS": "220", **more}


def runs_in(home: Path) -> list[Run]:
    """All runs of the home's store but sweeps' summaries, in the order in which they began."""
    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run for run in client.search_runs(experiments, order_by=["attributes.start_time ASC"]) if "kind" not in run.data.tags]
