"""Recording to a real `mlflow server`, also while it is away."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.conftest import clean_environment, command, tft_exp
from tft_exp.tracking.recorder import record_run
from tft_exp.tracking.spool import Destination, send_left, spool_of

SMALL = ["model=tiny", "trainer=quick", "batch.train=32", "batch.validation=64", "trainer.limit_train_batches=4", "device=cpu"]


class Server:
    """An MLflow server on a port of its own, with its own artifacts, that can be killed and started again."""

    def __init__(self, folder: Path, empty_store: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder / 'mlflow.db'}"
        folder.mkdir()
        shutil.copy(empty_store, folder / "mlflow.db")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        places = [
            "--backend-store-uri",
            f"sqlite:///{self.folder / 'mlflow.db'}",
            "--artifacts-destination",
            str(self.folder / "artifacts"),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *places, "--port", str(self.port), "--workers", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
            start_new_session=True,
        )
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).read()
                return
            except OSError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            subprocess.run(["pkill", "-KILL", "-g", str(self.process.pid)], check=False)
            self.process.wait()
            self.process = None

    def runs(self) -> list[Run]:
        client = MlflowClient(tracking_uri=self.store)
        everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
        return [run for run in client.search_runs(everywhere, order_by=["attributes.start_time ASC"]) if "kind" not in run.data.tags]

    def steps(self, run: Run, metric: str) -> list[int]:
        client = MlflowClient(tracking_uri=self.store)
        return [one.step for one in client.get_metric_history(run.info.run_id, metric)]

    def artifacts(self, run: Run) -> set[str]:
        folder = self.folder / "artifacts" / run.info.experiment_id / run.info.run_id / "artifacts"
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def server(tmp_path: Path, empty_store: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server", empty_store)
    server.start()
    yield server
    server.kill()


@contextmanager
def training(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("train", *arguments), cwd=cwd, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    seen = ""
    while words not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen


def test_a_run_goes_on_while_the_server_is_away_and_nothing_of_it_is_lost(tmp_path: Path, server: Server) -> None:
    to_server = ["tracking=server", f"tracking.uri={server.uri}"]
    with training(*SMALL, *to_server, "trainer.max_epochs=8", cwd=tmp_path) as process:
        read_until(process, "epoch 2/8")
        server.kill()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "epoch 8/8" in said
    assert said.count("MLflow does not take") == 1
    (kept,) = [path for path in spool_of(str(tmp_path / "mlruns")).iterdir() if path.is_dir()]
    assert str(kept) in said
    (half,) = server.runs()
    assert (half.info.status, server.steps(half, "val/loss")) != ("FINISHED", [*range(1, 9)])

    while_away = tft_exp("send", cwd=tmp_path)
    assert while_away.returncode == 1
    assert f"kept: {half.info.run_name} in {kept}" in while_away.stdout

    server.start()
    began = time.time() * 1000
    sent = tft_exp("send", cwd=tmp_path)
    assert (sent.returncode, sent.stdout) == (0, f"sent: {half.info.run_name}, run {half.info.run_id}\n")
    (run,) = server.runs()
    assert (run.info.run_id, run.info.status, run.data.tags["outcome"]) == (half.info.run_id, "FINISHED", "finished")
    assert server.steps(run, "val/loss") == [*range(1, 9)]
    assert run.data.metrics["summary/val_loss"] > 0
    assert run.info.end_time < began, "it ended when it ended, not when that could be told"
    assert {"config/resolved.yaml", "timeline/timeline.csv", "checkpoint/model.safetensors"} <= server.artifacts(run)
    assert tft_exp("send", cwd=tmp_path).stdout.startswith("nothing is kept in")


def test_a_sweep_outlives_its_server_and_resumes_from_what_was_sent_later(tmp_path: Path, server: Server) -> None:
    sweep = ["-m", *SMALL, "seed=0,1,2", "tracking=server", f"tracking.uri={server.uri}"]
    with training(*sweep, cwd=tmp_path) as process:
        read_until(process, "[1/3]")
        server.kill()
        said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "[3/3] seed=2: finished" in said
    assert "tft-exp send" in said

    server.start()
    again = tft_exp("train", *sweep, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == 3
    runs = server.runs()
    assert [(run.info.status, run.data.tags["job"]) for run in runs] == [("FINISHED", "0"), ("FINISHED", "1"), ("FINISHED", "2")]
    assert "3 finished" in again.stdout


def test_a_wrong_address_is_said_before_any_work(tmp_path: Path) -> None:
    done = tft_exp("train", *SMALL, "tracking=server", "tracking.uri=http://127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be opened" in done.stderr
    assert not spool_of(str(tmp_path / "mlruns")).exists()


def test_a_run_that_is_deleted_while_it_runs_is_kept(tmp_path: Path, home: Path) -> None:
    destination = Destination(None, str(home), "tft-exp")
    with record_run(destination, name="a", params={}, tags={}) as recorder:
        recorder.log({"val/loss": 1.0}, step=1)
        assert recorder.run_id is not None
        destination.open().client.delete_run(recorder.run_id)
        recorder.log({"val/loss": 0.5}, step=2)
    (left,) = send_left(str(home))
    assert "deleted" in left.trouble
    destination.open().client.restore_run(recorder.run_id)
    (left,) = send_left(str(home))
    assert left.trouble == ""
    run = destination.open().client.get_run(recorder.run_id)
    assert (run.info.status, run.data.metrics["val/loss"]) == ("FINISHED", 0.5)


def test_a_run_whose_creation_was_not_answered_is_not_created_twice(home: Path) -> None:
    """The server may have made the run though its answer was lost; the journal then finds it."""
    destination = Destination(None, str(home), "tft-exp")
    with record_run(destination, name="a", params={}, tags={}) as recorder:
        journal = recorder.journal
        journal.sent, first, journal.run_id = 0, journal.run_id, None
        recorder.log({"val/loss": 1.0}, step=1)
        assert recorder.run_id == first
