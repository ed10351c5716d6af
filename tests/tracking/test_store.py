"""The store and the recorder against a real SQLite store of MLflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import clean_environment, runs_in
from tft_exp.errors import Killed, TrackingError
from tft_exp.tracking.recorder import record_run
from tft_exp.tracking.runs import load_sweep
from tft_exp.tracking.spool import Destination, send_left, spool_of
from tft_exp.tracking.store import mend_stale_runs, open_store, process_tags


def record(home: Path, **more: dict[str, str]):  # type: ignore[no-untyped-def]
    settings = {"params": {}, "tags": {}} | more
    return record_run(Destination(None, str(home), "tft-exp"), name="a", **settings)


def test_a_run_that_ends_well_is_finished_with_its_artifacts(home: Path) -> None:
    with record(home, params={"policy": "keep"}, tags={"device": "cpu"}) as recorder:
        recorder.log({"val/loss": 0.5, "epoch/seconds": 1.0}, step=1)
        recorder.log({"val/loss": float("nan")}, step=2)
        (recorder.folder / "note.txt").write_text("hello")
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"], run.data.params["policy"]) == ("FINISHED", "finished", "keep")
    assert run.data.metrics["epoch/seconds"] == 1.0
    artifacts = home / "artifacts" / run.info.run_id / "artifacts"
    assert (artifacts / "note.txt").read_text() == "hello"


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [(ValueError("broken"), "FAILED", "failed"), (Killed("15"), "KILLED", "killed"), (KeyboardInterrupt(), "KILLED", "killed")],
)
def test_an_exception_ends_the_run_with_a_true_status(home: Path, error: BaseException, status: str, outcome: str) -> None:
    with pytest.raises(type(error)), record(home):
        raise error
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"]) == (status, outcome)
    traceback = home / "artifacts" / run.info.run_id / "artifacts" / "traceback.txt"
    assert traceback.exists() == (status == "FAILED")
    if traceback.exists():
        assert "ValueError: broken" in traceback.read_text()
        assert run.data.tags["error"] == "ValueError: broken"


def test_an_out_of_memory_is_a_result(home: Path) -> None:
    with record(home) as recorder:
        recorder.outcome = "out_of_memory"
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "out_of_memory")


def test_a_killed_process_leaves_no_run_that_runs_for_ever(home: Path) -> None:
    code = f"""
import time
from tft_exp.tracking.recorder import record_run
from tft_exp.tracking.spool import Destination
with record_run(Destination(None, {str(home)!r}, "tft-exp"), name="a", params={{}}, tags={{}}) as recorder:
    (recorder.folder / "note.txt").write_text("so far")
    print("open", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=clean_environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    store = open_store(None, str(home), "tft-exp")
    assert mend_stale_runs(store) == 0, "the process still lives"
    assert send_left(str(home)) == [], "the process still lives"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert runs_in(home)[0].info.status == "RUNNING"
    (left,) = send_left(str(home))
    assert (left.trouble, left.name) == ("", "a")
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"], left.run_id) == ("KILLED", "killed", run.info.run_id)
    assert (home / "artifacts" / run.info.run_id / "artifacts" / "note.txt").read_text() == "so far"
    assert not list(spool_of(str(home)).iterdir())


def test_a_recycled_process_number_is_not_taken_for_the_process(home: Path) -> None:
    store = open_store(None, str(home), "tft-exp")
    tags = process_tags() | {"process_started": "1.00"}
    assert tags["pid"] == str(os.getpid())
    store.client.create_run(store.experiment_id, tags=tags)
    assert mend_stale_runs(store) == 1


def test_processes_that_create_the_store_at_once_all_succeed(tmp_path: Path) -> None:
    code = f"from tft_exp.tracking.store import open_store; print(open_store(None, {str(tmp_path / 'new')!r}, 'tft-exp').experiment_id)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    results = [(*process.communicate(timeout=180), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0, 0, 0], results
    assert len({out for out, _, _ in results}) == 1


def test_what_is_not_there_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="there are no runs in"):
        open_store(None, str(tmp_path / "nowhere"), "tft-exp", create=False)
    with pytest.raises(TrackingError, match="there is no experiment 'other'"):
        open_store(None, str(home), "other", create=False)
    store = open_store(None, str(home), "tft-exp")
    with pytest.raises(TrackingError, match="there is no sweep in the experiment"):
        load_sweep(store)
    with pytest.raises(TrackingError, match="there is no sweep 'x'"):
        load_sweep(store, "x")
    began = time.monotonic()
    with pytest.raises(TrackingError, match="cannot be opened"):
        open_store("http://127.0.0.1:9", str(home), "tft-exp")
    assert time.monotonic() - began < 60


def test_the_latest_sweep_is_found_and_in_the_order_of_its_jobs(home: Path) -> None:
    store = open_store(None, str(home), "tft-exp")
    for sweep, job in (("old", "0"), ("new", "10"), ("new", "9")):
        store.client.create_run(store.experiment_id, tags={"sweep_id": sweep, "job": job}, run_name=f"{sweep}-{job}")
        time.sleep(0.01)
    sweep_id, rows = load_sweep(store)
    assert sweep_id == "new"
    assert [row.name for row in rows] == ["new-9", "new-10"]
    assert [row.name for row in load_sweep(store, "old")[1]] == ["old-0"]
