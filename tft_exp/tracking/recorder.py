"""Writes one run to MLflow: once at the start, once an epoch, once at the end."""

from __future__ import annotations

import secrets
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tft_exp.errors import Killed
from tft_exp.termination import undisturbed
from tft_exp.tracking.spool import Destination, Journal, begin, end_killed, now_ms, send_left, take
from tft_exp.tracking.store import mend_stale_runs, process_tags

# MLflow cuts longer values, with a warning that nobody reads.
TAG_LENGTH = 8000
PARAM_LENGTH = 6000

STATUS = {"finished": "FINISHED", "out_of_memory": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


@dataclass
class Recorder:
    """One open run. What is written to `folder` becomes its artifacts, sent when the run ends."""

    destination: Destination
    journal: Journal
    name: str
    outcome: str = "finished"

    @property
    def folder(self) -> Path:
        return self.journal.artifacts

    @property
    def run_id(self) -> str | None:
        """The run's id in the store; None while the store has not been reached."""
        return self.journal.run_id

    def log(self, metrics: Mapping[str, float], *, step: int = 0) -> None:
        """Record metrics. None of them may be None; a figure that was not measured is left out."""
        self.journal.add({"metrics": {key: float(value) for key, value in metrics.items()}, "step": step, "time": now_ms()})
        self.journal.send(self.destination, patient=True)

    def tag(self, tags: Mapping[str, str]) -> None:
        self.journal.add({"tags": {key: value[:TAG_LENGTH] for key, value in tags.items()}, "time": now_ms()})
        self.journal.send(self.destination, patient=True)

    def close(self) -> None:
        """Say how the run ended. A run that says FINISHED in the store has everything there."""
        with undisturbed():
            self.journal.add({"tags": {"outcome": self.outcome}, "time": now_ms()})
            self.journal.add({"end": STATUS[self.outcome], "time": now_ms()})
            self.journal.send(self.destination)
            self.journal.release()


def record_lost(destination: Destination, key: str, name: str, reason: str, tags: Mapping[str, str]) -> str | None:
    """Record a run whose process was killed: send what it left in the spool, and say so. Opens the run where it had none.
    Returns the run's id, None where the store cannot be reached."""
    journal = take(destination.home, key) or _begin(destination, key, name, tags)
    if not journal.ended:
        end_killed(journal, reason)
    journal.send(destination)
    journal.release()
    return journal.run_id


def record_summary(destination: Destination, sweep_id: str, metrics: Mapping[str, float], files: Path) -> None:
    """Record a sweep as a run of its own, beside its jobs' and not above them: MLflow's comparison shows nested runs folded.
    The files in the folder `files` become its artifacts."""
    tags = {"kind": "sweep", "sweep_id": sweep_id, "mlflow.source.name": "tft-exp train", "mlflow.source.type": "LOCAL"}
    name = f"sweep {sweep_id}"
    recorder = Recorder(destination, _begin(destination, f"{sweep_id}-summary-{secrets.token_hex(2)}", name, tags), name)
    shutil.copytree(files, recorder.folder, dirs_exist_ok=True)
    recorder.log(metrics)
    recorder.close()


def _begin(destination: Destination, key: str, name: str, tags: Mapping[str, str]) -> Journal:
    all_tags = {**process_tags(), **{key: value[:TAG_LENGTH] for key, value in tags.items()}}
    opening = {"uri": destination.uri, "experiment": destination.experiment, "name": name, "tags": all_tags, "time": now_ms()}
    return begin(destination.home, key, opening)


@contextmanager
def record_run(
    destination: Destination, *, key: str | None = None, name: str, params: Mapping[str, str], tags: Mapping[str, str]
) -> Iterator[Recorder]:
    """Open a run that ends in every case: an exception makes it FAILED with its traceback, SIGTERM and Ctrl-C KILLED.

    `key` names the run in the spool; a run of a sweep that has one is recorded even where the store does not answer now, because
    the sweep has seen it answer. Raises TrackingError, before the run is opened, where a run without one does not reach it.
    """
    if key is None:
        with undisturbed():
            destination.open()
    recorder: Recorder | None = None
    try:
        with undisturbed():
            unique = key or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
            recorder = Recorder(destination, _begin(destination, unique, name, tags), name)
            recorder.journal.add({"params": {key: value[:PARAM_LENGTH] for key, value in params.items()}, "time": now_ms()})
            if not recorder.journal.send(destination):
                with suppress(Exception):  # what other runs left is not worth this one
                    send_left(destination.home, destination)
                    mend_stale_runs(destination.open())
        yield recorder
    except (Killed, KeyboardInterrupt):
        if recorder is not None:
            recorder.outcome = "killed"
        raise
    except BaseException as error:
        if recorder is not None:
            recorder.outcome = "failed"
            (recorder.folder / "traceback.txt").write_text(traceback.format_exc())
            recorder.tag({"error": f"{type(error).__name__}: {error}"})
        raise
    finally:
        if recorder is not None:
            recorder.close()
