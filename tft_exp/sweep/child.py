"""What runs in a process of its own, forked where torch, MLflow and the rest are imported already."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Every job would import these, the first time that it draws or reads times.
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import pandas  # noqa: F401
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, JobStatus, setup_globals
from hydra.core.utils import run_job as run_hydra_job
from omegaconf import DictConfig

import tft_exp.planning.worker
import tft_exp.tracking.preload  # noqa: F401
from tft_exp.config import Config, TrackingConfig
from tft_exp.data.source import find_files, fingerprint
from tft_exp.errors import Killed, TrackingError, UserError
from tft_exp.planning import prediction
from tft_exp.report import progress
from tft_exp.report.compare import print_comparison
from tft_exp.report.export import write_csv
from tft_exp.report.groups import group_runs
from tft_exp.report.page import render_page
from tft_exp.report.verdict import recommend
from tft_exp.sweep.jobs import Ended, Place, Prepared, SweepJob, Task
from tft_exp.termination import listen
from tft_exp.tracking.curves import load_curves
from tft_exp.tracking.provenance import run_fingerprint
from tft_exp.tracking.recorder import record_lost, record_summary
from tft_exp.tracking.runs import RunRow, finished_runs, load_runs
from tft_exp.tracking.spool import Destination, send_left
from tft_exp.tracking.store import Store, mend_stale_runs

log = logging.getLogger("tft_exp")
SECONDS_BETWEEN_REPORTS = 0.2


def run_job(connection: Connection, job: SweepJob, place: Place, pickled_task: bytes, plans: Mapping[str, Any]) -> None:
    """Run one job as Hydra would, telling `connection` what happens. What ends it becomes a report; only a signal does not."""
    prediction.plan_in_reserve()
    listen(signal.SIGTERM)
    if place.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place.gpu
    if place.slots > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.slots))
    prediction.plans.update(plans)
    task: Task = pickle.loads(pickled_task)
    teller = _Teller(connection)
    progress.listener = teller
    opened: list[tuple[str | None, str]] = []

    def on_open(run_id: str | None, name: str) -> None:
        opened[:] = [(run_id, name)]
        connection.send(("opened", run_id, name))

    def function(composed: DictConfig) -> object:
        _log_through(teller.message)
        return experiment_of(composed)

    application = task.function.__self__  # type: ignore[attr-defined]
    application.on_open = on_open
    experiment_of = application.job
    setup_globals()
    JobRuntime.instance().set("name", job.composed.hydra.job.name)
    HydraConfig.instance().set_config(job.composed)
    try:
        done = run_hydra_job(
            hydra_context=task.context,
            config=job.composed,
            task_function=function,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except Killed as error:
        report = Ended(job.number, job.label, "killed", reason=str(error))
    else:
        if done.status is JobStatus.COMPLETED:
            outcome = application.outcomes[-1]
            report = Ended(job.number, job.label, outcome.outcome, summary=dict(outcome.summary), phase=outcome.phase)
        else:
            report = Ended(job.number, job.label, "failed", reason=str(done._return_value))
    if opened:
        report = replace(report, run_id=opened[0][0], name=opened[0][1])
    connection.send(("ended", report, {key: plan for key, plan in prediction.plans.items() if key not in plans}))


class _Teller:
    """Tells the sweep's process how far the run is, not more often than a person can see."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def message(self, text: str) -> None:
        self._send("message", text)

    def epoch(self, text: str) -> None:
        self._send("epoch", text)

    def progress(self, fraction: float, state: str) -> None:
        if time.monotonic() - self._last > SECONDS_BETWEEN_REPORTS:
            self._last = time.monotonic()
            self._send("progress", fraction, state)

    def _send(self, *content: object) -> None:
        try:
            self._connection.send(content)
        except OSError:
            raise Killed("the sweep's own process is gone") from None


def _log_through(send: Callable[[str], None]) -> None:
    """What a job would write on the terminal goes to the sweep's process, which draws a bar there; its file stays."""

    class Through(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send(self.format(record).split("\nTraceback", 1)[0])  # the file has the traceback

    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if isinstance(handler, logging.FileHandler)]
    root.addHandler(Through())


def prepare(tracking: TrackingConfig, configs: Sequence[Config], sweep_id: str, resume: bool) -> Prepared:
    """Open the store, make it where it is not there, and look for what is done already. A finished run that these
    configurations ask for is entered into the sweep `sweep_id`. Raises TrackingError."""
    store = _settled(tracking)
    files: dict[str, str | None] = {}
    fingerprints: list[str | None] = []
    for config in configs:
        path = config.data.path
        if path not in files:
            try:
                files[path] = fingerprint(find_files(path)) if resume else None
            except (UserError, OSError):
                files[path] = None  # the job itself says what is wrong
        content = files[path]
        fingerprints.append(None if content is None else run_fingerprint(config, content))
    runs = finished_runs(store, {found for found in fingerprints if found is not None}, sweep_id)
    return Prepared([None if found not in runs else _done(runs[found]) for found in fingerprints], _gpus())


def _done(run: RunRow) -> Ended:
    summary = {key.removeprefix("summary/"): value for key, value in run.metrics.items() if key.startswith("summary/")}
    reason = "the same configuration, data and code (sweep.resume=false runs it again)"
    return Ended(0, "", "done", run.name, run.run_id, reason, summary=summary, phase=run.tags.get("out_of_memory_phase"))


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number in range(torch.cuda.device_count())]


def _destination(tracking: TrackingConfig) -> Destination:
    return Destination(tracking.uri, tracking.home, tracking.experiment)


def _settled(tracking: TrackingConfig) -> Store:
    """The store, once it has what earlier runs left in the spool, and nothing says that it runs and does not."""
    destination = _destination(tracking)
    store = destination.open()
    send_left(tracking.home, destination)
    mend_stale_runs(store)
    return store


def mend(tracking: TrackingConfig) -> None:
    """Set to KILLED what says that it runs and does not, where the store can be reached."""
    with suppress(TrackingError):
        _settled(tracking)


def lost(ended: Ended, tracking: TrackingConfig, sweep_id: str) -> Ended:
    """Record a job whose process is gone: what it had written is sent, and its run says that it was killed."""
    tags = {"sweep_id": sweep_id, "job": str(ended.number)}
    key = f"{sweep_id}-{ended.number}"
    return replace(ended, run_id=record_lost(_destination(tracking), key, ended.name or ended.label, ended.reason, tags))


def conclude(tracking: TrackingConfig, sweep_id: str, ended: Sequence[Ended]) -> None:
    """Show the sweep's runs beside each other, what was not run and why, and what failed; the comparison becomes a run of its own."""
    try:
        store = _settled(tracking)
    except TrackingError as error:
        print(f"\nMLflow does not answer, and so there is no comparison now; what it lacks is kept: tft-exp send --home {tracking.home}")
        print(f"  {error.what}")
    else:
        try:
            _compare(tracking, store, sweep_id)
        except Exception as error:  # such as a store that goes away now; every job's line has been printed
            print(f"\nThe comparison was not made: {type(error).__name__}: {error}\n  mend:  tft-exp compare {sweep_id}")
    for one in ended:
        if one.outcome in ("skipped", "failed", "killed", "not started"):
            print(f"{one.outcome}: {one.label}: {one.reason}")
    sys.stdout.flush()


def _compare(tracking: TrackingConfig, store: Store, sweep_id: str) -> None:
    try:
        title, runs = load_runs(store, sweep_id)
    except TrackingError:
        runs = []  # every job was refused, or failed before it had a run
    if runs:
        print()
        groups = group_runs(runs)
        print_comparison(title, groups)
        print(recommend(groups).text)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "summary"
            files.mkdir()
            (files / "comparison.html").write_text(render_page(title, groups, load_curves(store, runs)))
            write_csv(runs, files / "runs.csv")
            counts = Counter(run.outcome for run in runs)
            record_summary(_destination(tracking), sweep_id, {f"jobs/{name}": float(count) for name, count in counts.items()}, files)
