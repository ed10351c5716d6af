"""Sweeps through `hydra/launcher=isolated`: real processes, real signals, a real MLflow store."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from mlflow.entities import Run

from tests.conftest import clean_environment, command, runs_in, tft_exp
from tft_exp.startup import process_context

SMALL = ["model=tiny", "trainer=quick", "batch.train=32", "batch.validation=64", "trainer.limit_train_batches=4"]
CPU = [*SMALL, "device=cpu"]


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("train", "-m", *arguments), cwd=cwd, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    seen = ""
    deadline = time.monotonic() + 120
    while words not in seen:
        assert time.monotonic() < deadline, seen
        line = process.stderr.readline()
        assert line, seen
        seen += line
    return seen


def running(home: Path) -> Run:
    (run,) = [run for run in runs_in(home) if run.info.status == "RUNNING"]
    return run


def test_a_sweep_outlives_what_becomes_of_its_jobs_and_resumes(tmp_path: Path, home: Path) -> None:
    """Of twelve jobs two run out of memory, one asks for more bars than there are, one is killed from outside."""
    sweep = ["model.lookback=4,5,6,7,8,9,10,11,12,600,700,3000", *SMALL, "device=virtual_4gb", "device.capacity_mib=500"]
    sweep += ["trainer.max_epochs=5"]
    process = start(*sweep, cwd=tmp_path)
    wait_for(process, "s0 epoch 2/5")
    os.kill(int(running(home).data.tags["pid"]), signal.SIGKILL)
    shown, lines = process.communicate(timeout=200)
    assert process.returncode == 1, lines
    runs = runs_in(home)
    assert Counter(run.data.tags["outcome"] for run in runs) == {"out_of_memory": 2, "failed": 1, "killed": 1, "finished": 8}
    assert {run.info.status for run in runs if run.data.tags["outcome"] == "out_of_memory"} == {"FINISHED"}
    assert {run.data.tags["out_of_memory_phase"] for run in runs if run.data.tags["outcome"] == "out_of_memory"} == {"train"}
    killed = next(run for run in runs if run.data.tags["outcome"] == "killed")
    assert killed.info.status == "KILLED"
    failed = next(run for run in runs if run.data.tags["outcome"] == "failed")
    assert (failed.info.status, failed.data.params["model.lookback"]) == ("FAILED", "3000")
    assert "DataError" in failed.data.tags["error"]
    assert "SIGKILL" in killed.data.tags["error"]
    assert killed.data.metrics["val/loss"] > 0, "what it had logged is there"
    assert "[12/12]" in lines
    assert "killed by SIGKILL" in lines
    assert "killed: model.lookback=4:" in shown
    assert "failed: model.lookback=3000:" in shown
    logs = [path.read_text() for path in (home / "jobs").rglob("job.log")]
    assert sum("Traceback" in log and "DataError" in log for log in logs) == 1

    again = tft_exp("train", "-m", *sweep, cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    assert again.stderr.count("done before") == 10  # an out-of-memory is a result
    later = {run.data.params["model.lookback"]: run.info.status for run in runs_in(home)[len(runs) :]}
    assert later == {"4": "FINISHED", "3000": "FAILED"}
    pids = {run.data.tags["pid"] for run in runs_in(home)}
    assert len(pids) == len(runs_in(home)), "every job had a process of its own"


def test_what_the_schema_refuses_is_skipped_with_its_reason(tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", "-m", "model.hidden_size=16,15", *CPU, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(home)
    assert run.data.params["model.hidden_size"] == "16"
    assert "model.hidden_size=15: skipped: model" in done.stderr
    assert "skipped: model.hidden_size=15: model" in done.stdout


def test_a_sweep_stops_at_a_failure_if_asked_to(tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", "-m", "optimizer.learning_rate=1e30,1e-3,2e-3", "sweep.on_failure=stop", *CPU, cwd=tmp_path)
    assert done.returncode == 1
    assert [run.data.tags["outcome"] for run in runs_in(home)] == ["failed"]
    assert done.stdout.count("not started: ") == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_is_told_to_end_ends_its_jobs_truly(number: signal.Signals, code: int, tmp_path: Path, home: Path) -> None:
    process = start("seed=0,1,2", *CPU, "trainer.max_epochs=10000", "hydra.launcher.n_jobs=2", cwd=tmp_path)
    seen = wait_for(process, "s0 epoch 2/")
    if "s1 epoch" not in seen:
        wait_for(process, "s1 epoch")
    process.send_signal(number)
    _, lines = process.communicate(timeout=60)
    assert process.returncode == code, lines
    runs = runs_in(home)
    assert [(run.info.status, run.data.tags["outcome"]) for run in runs] == [("KILLED", "killed")] * 2
    assert all(run.data.metrics["val/loss"] > 0 for run in runs)


def test_a_process_of_the_server_collects_its_garbage() -> None:
    """The server itself collects none while it imports; a job that inherited that would keep every cycle to its end."""
    context = process_context("tft_exp.errors")
    here, there = context.Pipe()
    process = context.Process(target=_tell_whether_it_collects, args=(there,))
    process.start()
    assert here.recv() is True
    process.join()


def _tell_whether_it_collects(connection: Connection) -> None:
    connection.send(gc.isenabled())


def test_the_sweeps_own_process_imports_neither_torch_nor_mlflow(tmp_path: Path, home: Path) -> None:
    """They would take some seconds and 400 MB beside the jobs."""
    script = tmp_path / "sweep.py"
    lines = ["import sys", "from tft_exp.app import train", "if __name__ == '__main__':", f"    train({['-m', 'seed=0', *CPU]!r})"]
    script.write_text("\n".join([*lines, "    print(*(name for name in ('torch', 'mlflow', 'matplotlib') if name in sys.modules))"]))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert runs_in(home)
    assert done.stdout.splitlines()[-1].strip() == ""
