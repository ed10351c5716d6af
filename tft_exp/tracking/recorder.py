"""Writes one run to MLflow: once at the start, once an epoch, once at the end."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tft_exp.errors import Killed
from tft_exp.termination import undisturbed
from tft_exp.tracking.store import Store, mend_stale_runs, open_store, process_tags

# MLflow cuts longer values, with a warning that nobody reads.
TAG_LENGTH = 8000
PARAM_LENGTH = 6000

STATUS = {"finished": "FINISHED", "out_of_memory": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


@dataclass
class Recorder:
    """One open run. `folder` is what becomes its artifacts: write files there, they are sent when the run ends."""

    store: Store
    run_id: str
    name: str
    folder: Path
    outcome: str = "finished"
    _tags: dict[str, str] = field(default_factory=dict)

    def log(self, metrics: Mapping[str, float], *, step: int = 0) -> None:
        """Write metrics in one call. None of them may be None; a figure that was not measured is left out."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        with undisturbed():
            self.store.client.log_batch(self.run_id, metrics=[Metric(key, float(value), now, step) for key, value in metrics.items()])

    def tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        with undisturbed():
            self.store.client.log_batch(self.run_id, tags=[RunTag(key, value[:TAG_LENGTH]) for key, value in tags.items()])

    def close(self) -> None:
        """Send the artifacts, then say how the run ended; a run that says FINISHED has everything.

        The folder goes once its files are in the store, so that checkpoints do not fill the disk twice.
        """
        with undisturbed():
            try:
                if any(self.folder.iterdir()):
                    self.store.client.log_artifacts(self.run_id, str(self.folder))
                shutil.rmtree(self.folder)
            finally:
                self.tag({"outcome": self.outcome})
                self.store.client.set_terminated(self.run_id, status=STATUS[self.outcome])


def record_lost(store: Store, run_id: str | None, name: str, folder: str, reason: str, tags: Mapping[str, str]) -> str:
    """Record a run whose process was killed: send what it left in `folder`, and say so. Opens the run where it had none.
    Returns the run's id."""
    if run_id is None:
        run_id = store.client.create_run(store.experiment_id, run_name=name, tags={**process_tags(), **tags}).info.run_id
    recorder = Recorder(store, run_id, name, Path(folder), outcome="killed")
    recorder.folder.mkdir(parents=True, exist_ok=True)
    recorder.tag({"error": reason})
    recorder.close()
    return run_id


def record_summary(store: Store, sweep_id: str, metrics: Mapping[str, float], folder: Path) -> str:
    """Record a sweep as a run of its own, beside its jobs' and not above them: MLflow's comparison shows nested runs folded.
    The files in `folder` become its artifacts. Returns the run's id."""
    tags = {**process_tags(), "kind": "sweep", "sweep_id": sweep_id, "mlflow.source.name": "tft-exp train", "mlflow.source.type": "LOCAL"}
    run = store.client.create_run(store.experiment_id, run_name=f"sweep {sweep_id}", tags=tags)
    recorder = Recorder(store, run.info.run_id, f"sweep {sweep_id}", folder)
    recorder.log(metrics)
    recorder.close()
    return recorder.run_id


@contextmanager
def record_run(
    *, uri: str | None, home: str, experiment: str, name: str, folder: Path, params: Mapping[str, str], tags: Mapping[str, str]
) -> Iterator[Recorder]:
    """Open a run that ends in every case: an exception makes it FAILED with its traceback, SIGTERM and Ctrl-C KILLED."""
    from mlflow.entities import Param

    with undisturbed():
        store = open_store(uri, home, experiment)
        mend_stale_runs(store)
    folder.mkdir(parents=True, exist_ok=True)
    tagged = {**process_tags(), **{key: value[:TAG_LENGTH] for key, value in tags.items()}}
    recorder: Recorder | None = None
    try:
        with undisturbed():
            run = store.client.create_run(store.experiment_id, run_name=name, tags=tagged)
            recorder = Recorder(store, run.info.run_id, name, folder)
            store.client.log_batch(run.info.run_id, params=[Param(key, value[:PARAM_LENGTH]) for key, value in params.items()])
        yield recorder
    except (Killed, KeyboardInterrupt):
        if recorder is not None:
            recorder.outcome = "killed"
        raise
    except BaseException as error:
        if recorder is not None:
            recorder.outcome = "failed"
            (folder / "traceback.txt").write_text(traceback.format_exc())
            recorder.tag({"error": f"{type(error).__name__}: {error}"})
        raise
    finally:
        if recorder is not None:
            recorder.close()
