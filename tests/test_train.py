"""Whole runs through the real command line, real Hydra multirun and a real MLflow store."""

from __future__ import annotations

import csv
import json
import re
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.conftest import clean_environment, command, new_home, runs_in, tft_exp
from tft_exp import experiment
from tft_exp.compose import compose_config

SMALL = ["model=tiny", "trainer=quick", "device=cpu", "batch.train=32", "batch.validation=64", "trainer.limit_train_batches=4"]
PHASES = ["train", "before_validation", "validation", "after_validation"]


@dataclass
class Sweep:
    done: subprocess.CompletedProcess[str]
    folder: Path
    runs: list[Run]

    def artifact(self, run: Run, *parts: str) -> Path:
        return (self.folder / "mlruns" / "artifacts" / run.info.run_id / "artifacts").joinpath(*parts)


def table_of(shown: str) -> str:
    """What a comparison prints before its recommendation."""
    return shown.partition("\nTake ")[0]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Sweep:
    """Three policies, the control, two seeds; one job of the nine fails, because its learning rate blows the loss up."""
    folder = tmp_path_factory.mktemp("sweep")
    home = new_home(folder, empty_store)
    done = tft_exp("train", "-m", "policy=keep,offload,recreate,stash", "seed=0,1", *SMALL, cwd=folder)
    return Sweep(done, folder, runs_in(home))


def test_every_combination_is_a_flat_finished_run(sweep: Sweep) -> None:
    assert sweep.done.returncode == 0, sweep.done.stderr
    assert len(sweep.runs) == 8
    assert {(run.data.params["policy"], run.data.params["seed"]) for run in sweep.runs} == {
        (policy, seed) for policy in ("keep", "offload", "recreate", "stash") for seed in "01"
    }
    for run in sweep.runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags["outcome"] == "finished"
        assert "mlflow.parentRunId" not in run.data.tags
    assert len({run.data.tags["sweep_id"] for run in sweep.runs}) == 1
    assert [run.data.tags["job"] for run in sweep.runs] == [str(number) for number in range(8)]
    assert sweep.runs[0].info.run_name == "tiny-b64-keep-s0"


def test_runs_say_where_they_come_from(sweep: Sweep) -> None:
    tags = sweep.runs[0].data.tags
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
    assert tags["git_commit"] == commit
    assert tags["git_dirty"] in ("true", "false")
    assert len(tags["data_fingerprint"]) >= 16
    assert tags["version.torch"].startswith("2.")
    assert tags["device"] == "cpu"
    assert tags["memory_quantity"] == "rss"
    assert "process RSS" in tags["memory_source"]
    assert sweep.runs[0].data.params["batch.train"] == "32"


def test_metrics_of_every_epoch_and_one_summary(sweep: Sweep) -> None:
    metrics = sweep.runs[0].data.metrics
    wanted = {"train/loss", "val/loss", "val/q_risk_p10", "val/q_risk_p50", "val/q_risk_p90", "epoch/seconds", "naive/climatology_loss"}
    wanted |= {f"memory/{phase}_{edge}_rss_mib" for phase in PHASES for edge in ("start", "end", "peak")}
    wanted |= {f"epoch/{phase}_seconds" for phase in PHASES}
    wanted |= {f"summary/{name}" for name in ("val_loss", "naive_loss", "skill", "epoch_seconds", "peak_rss_mib", "optimizer_state_mib")}
    assert wanted <= set(metrics)
    assert metrics["memory/train_peak_rss_mib"] >= metrics["memory/train_start_rss_mib"] > 50
    # Nothing about a card that is not there, least of all as 0.
    assert not [name for name in metrics if "allocated" in name or "reserved" in name or "driver" in name]
    # AdamW: two float32 moments a parameter, and a step count a tensor.
    assert metrics["summary/optimizer_state_mib"] * 2**20 == pytest.approx(8 * metrics["summary/parameters"], rel=0.01)


def test_every_claim_was_audited(sweep: Sweep) -> None:
    verdicts = {"keep": "nothing claimed", "offload": "nothing claimed", "recreate": "verified", "stash": "nothing freed"}
    for run in sweep.runs:
        policy, metrics = run.data.params["policy"], run.data.metrics
        assert run.data.tags["audit"] == verdicts[policy]
        state = metrics["summary/optimizer_state_mib"] if policy in ("recreate", "stash") else 0.0
        assert metrics["memory/audit/claimed_mib"] == metrics["summary/audit/claimed_mib"] == state
        assert metrics["memory/audit/freed_mib"] == pytest.approx(state if policy == "recreate" else 0.0, abs=0.01)
        if policy == "stash":
            assert "suspended generator stash" in run.data.tags["audit_finding"]
            assert "local 'dropped' -> AdamW.state" in run.data.tags["audit_finding"]
    assert sweep.done.stderr.count("audit of policy=stash: nothing freed") == 2
    assert table_of(sweep.done.stdout).count("nothing freed") == 1


def test_a_strict_audit_lets_no_false_claim_pass(tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", *SMALL, "policy=stash", "audit=strict", cwd=tmp_path)
    assert done.returncode == 2
    assert "policy=stash does not do what it claims" in done.stderr
    assert "local 'dropped'" in done.stderr
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"], run.data.tags["audit"]) == ("FAILED", "failed", "nothing freed")
    assert "val/loss" not in run.data.metrics


def test_the_seed_decides_and_offload_changes_nothing(sweep: Sweep) -> None:
    loss = {(run.data.params["policy"], run.data.params["seed"]): run.data.metrics["val/loss"] for run in sweep.runs}
    assert loss["keep", "0"] == loss["offload", "0"] == loss["stash", "0"]
    assert loss["keep", "0"] != loss["keep", "1"]
    assert loss["recreate", "0"] != loss["keep", "0"]


def test_artifacts_hold_all_that_a_rerun_needs(sweep: Sweep) -> None:
    run = sweep.runs[3]
    overrides = yaml.safe_load(sweep.artifact(run, "config", "overrides.yaml").read_text())
    assert "policy=offload" in overrides
    assert "seed=1" in overrides
    resolved = yaml.safe_load(sweep.artifact(run, "config", "resolved.yaml").read_text())
    assert resolved["policy"]["residency"] == "offload"
    assert resolved["model"]["hidden_size"] == 16
    assert "torch==" in sweep.artifact(run, "environment.txt").read_text()
    assert sweep.artifact(run, "timeline", "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert sweep.artifact(run, "checkpoint", "model.safetensors").stat().st_size > 1000
    assert json.loads(sweep.artifact(run, "checkpoint", "preprocessing.json").read_text())
    with sweep.artifact(run, "timeline", "timeline.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == ["setup", *PHASES, *PHASES]
    for row in rows:
        assert float(row["peak_rss_mib"]) >= float(row["start_rss_mib"]) - 0.5
        assert row["completed"] == "True"
        assert row["peak_reserved_mib"] == ""


def test_the_terminal_shows_the_comparison_and_the_way_to_mlflow(sweep: Sweep) -> None:
    shown = sweep.done.stdout
    assert "Left out: stash (2 finished; audit: nothing freed)" in shown
    for policy in ("keep", "offload", "recreate", "stash"):
        assert f" {policy} " in shown
    assert table_of(shown).count("2 finished") == 4
    assert "naive forecast" in shown
    assert "climatology" in shown
    assert f"bin/tft-exp ui --sweep {sweep.runs[0].data.tags['sweep_id']}" in shown
    assert "frees nothing on device=cpu" in sweep.done.stderr


def test_compare_reads_the_sweep_back_and_draws_it(sweep: Sweep) -> None:
    done = tft_exp("compare", "--baseline", "keep", "--png", "sweep.png", cwd=sweep.folder)
    assert done.returncode == 0, done.stderr
    assert "Validation loss less that of policy=keep, paired by seed" in done.stdout
    assert done.stdout.count("the same, bit for bit") == 6  # offload and stash; in their own table by last and best epoch
    assert table_of(done.stdout).count("2 finished") == 4
    assert (sweep.folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_compare_writes_a_page_and_tables(sweep: Sweep) -> None:
    files = [word for form in ("html", "csv", "json", "parquet") for word in (f"--{form}", f"sweep.{form}")]
    done = tft_exp("compare", "params.policy LIKE '%'", *files, cwd=sweep.folder)
    assert done.returncode == 0, done.stderr
    assert "Left out: stash (2 finished; audit: nothing freed)" in done.stdout
    page = (sweep.folder / "sweep.html").read_text()
    assert page.count("<svg") == 3
    assert not re.findall(r'(?:src|href)="http', page), "the page needs no network"
    assert "suspended generator stash" in page
    table = pd.read_csv(sweep.folder / "sweep.csv")
    for other in (pd.read_json(sweep.folder / "sweep.json"), pd.read_parquet(sweep.folder / "sweep.parquet")):
        assert other["run_id"].tolist() == table["run_id"].tolist() == [run.info.run_id for run in sweep.runs]
    losses = [run.data.metrics["summary/val_loss"] for run in sweep.runs]
    assert table["val_loss"].tolist() == pytest.approx(losses)


def test_a_sweep_has_one_summary_beside_its_runs(sweep: Sweep) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{sweep.folder / 'mlruns' / 'mlflow.db'}")
    (summary,) = client.search_runs([sweep.runs[0].info.experiment_id], filter_string="tags.kind = 'sweep'")
    assert summary.data.metrics == {"jobs/finished": 8.0}
    assert summary.info.status == "FINISHED"
    assert "mlflow.parentRunId" not in summary.data.tags
    assert "<svg" in sweep.artifact(summary, "comparison.html").read_text()


def test_what_cannot_be_compared_is_said(sweep: Sweep) -> None:
    for what, words in (
        ("nothing", "no sweep 'nothing'"),
        ("params.policy =", "cannot read the filter"),
        ("params.policy = 'x'", "no run has"),
    ):
        done = tft_exp("compare", what, cwd=sweep.folder)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_failing_job_is_recorded_reported_and_does_not_stop_the_sweep(tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", "-m", "optimizer.learning_rate=1e30,1e-3", *SMALL, cwd=tmp_path)
    assert done.returncode == 1
    failed, finished = runs_in(home)
    assert (failed.info.status, failed.data.tags["outcome"]) == ("FAILED", "failed")
    assert "loss became" in failed.data.tags["error"]
    artifacts = home / "artifacts" / failed.info.run_id / "artifacts"
    assert not list((home / "spool").iterdir()), "what is in the store is not kept twice"
    assert "TrainingError" in (artifacts / "traceback.txt").read_text()
    assert (finished.info.status, finished.data.tags["outcome"]) == ("FINISHED", "finished")
    assert "1 failed" in done.stdout
    assert "1 finished" in done.stdout
    assert "loss became" in done.stderr


def limit_memory(mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (mib * 2**20, mib * 2**20))


def test_a_real_out_of_memory_in_validation_is_a_result_and_the_next_job_runs(tmp_path: Path, home: Path) -> None:
    """The kernel refuses memory beyond a limit: validation of all windows at once cannot get it, small batches can."""
    arguments = [
        "train",
        "-m",
        "batch.validation=100000,64",
        "batch.share_rows=false",
        "data=es_5s",
        "model=base",
        "model.activations=keep",
        "trainer=quick",
        "device=cpu",
    ]
    arguments += ["batch.train=8", "trainer.limit_train_batches=3", "trainer.limit_validation_batches=20", "model.horizon=4"]
    done = subprocess.run(
        command(*arguments),
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="2", MALLOC_ARENA_MAX="2"),
        capture_output=True,
        text=True,
        timeout=400,
        preexec_fn=lambda: limit_memory(2600),
    )
    assert done.returncode == 0, done.stderr
    ran_out, finished = runs_in(home)
    assert (ran_out.info.status, ran_out.data.tags["outcome"]) == ("FINISHED", "out_of_memory")
    assert ran_out.data.tags["out_of_memory_phase"] == "validation"
    assert ran_out.data.metrics["summary/epochs"] == 0
    assert ran_out.data.metrics["summary/validation_peak_rss_mib"] > 0
    assert "1 OOM in validation" in done.stdout
    assert "batch.validation=100000: out of memory in validation" in done.stderr
    timeline = (home / "artifacts" / ran_out.info.run_id / "artifacts" / "timeline" / "timeline.csv").read_text()
    assert ",False," in timeline.splitlines()[-1]
    assert finished.data.tags["outcome"] == "finished"
    # What the lost attempt held was given back: the next job starts about as small as the first one did.
    before, after = (run.data.metrics["summary/setup_peak_rss_mib"] for run in (ran_out, finished))
    assert after - before < 150


def test_on_a_virtual_card_the_policy_decides_and_the_control_is_seen(tmp_path: Path, home: Path) -> None:
    """Training fits, validation fits only without the optimizer's state: the report's failure and its cure, small."""
    arguments = ["device=virtual_4gb", "device.capacity_mib=546", "model=small", "model.hidden_size=128", "model.lookback=24"]
    arguments += ["model.activations=keep", "model.selection_size=128"]
    arguments += ["batch.train=4", "batch.validation=54", "trainer=quick", "trainer.max_epochs=1", "trainer.limit_train_batches=2"]
    arguments += ["trainer.limit_validation_batches=1"]
    done = tft_exp("train", "-m", "policy=stash,keep,recreate,offload", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = {run.data.params["policy"]: run.data for run in runs_in(home)}
    for policy in ("stash", "keep"):
        assert runs[policy].tags["outcome"] == "out_of_memory"
        assert runs[policy].tags["out_of_memory_phase"] == "validation"
        assert runs[policy].tags["predicted_outcome"] == "out of memory in validation"
        assert "CUDA out of memory. Tried to allocate" in runs[policy].tags["error"]
        assert runs[policy].metrics["summary/freed_before_validation_mib"] == 0
        assert runs[policy].metrics["summary/state_in_validation_mib"] == runs[policy].metrics["summary/optimizer_state_mib"] > 10
    for policy in ("recreate", "offload"):
        assert runs[policy].tags["outcome"] == "finished"
        assert runs[policy].metrics["summary/state_in_validation_mib"] == 0
        freed, state = (runs[policy].metrics[f"summary/{name}"] for name in ("freed_before_validation_mib", "optimizer_state_mib"))
        # By the allocator's blocks, of which a large one may keep up to a MiB beside what was asked for.
        assert state <= freed < 1.1 * state
        assert runs[policy].metrics["memory/validation_peak_reserved_mib"] <= 546 - 450
        assert runs[policy].metrics["memory/validation_peak_allocated_mib"] > 96 - state - 3
        assert runs[policy].tags["predicted_outcome"] == "fits"
        assert runs[policy].metrics["summary/prediction_error_pct"] == pytest.approx(0, abs=1)
    assert table_of(done.stdout).count("1 OOM in validation") == 2
    assert "virtual card of 546 MiB" in runs["keep"].tags["memory_source"]
    keep = runs["keep"].metrics
    parts = [value for name, value in keep.items() if name.startswith("summary/out_of_memory/") and name.endswith("_mib")]
    assert len(parts) == 5
    assert (
        keep["summary/out_of_memory/requested_mib"] + keep["summary/out_of_memory/reserved_mib"]
        > keep["summary/out_of_memory/capacity_mib"]
        == 96
    )
    made = runs["offload"].metrics
    kinds = [made[f"makeup/validation_{kind}_mib"] for kind in ("parameters", "gradients", "optimizer_state", "kernel_workspace", "other")]
    assert sum(kinds) == pytest.approx(made["memory/validation_peak_allocated_mib"], rel=0.03)
    assert kinds[1] == 0
    assert kinds[2] < 0.01
    assert made["memory/validation_peak_host_mib"] == pytest.approx(made["summary/optimizer_state_mib"], rel=0.01)
    assert "at the peak of validation: other" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_stop_says_killed(number: signal.Signals, code: int, tmp_path: Path, home: Path) -> None:
    arguments = command("train", *SMALL, "trainer.max_epochs=100000", "trainer.limit_train_batches=1", "trainer.limit_validation_batches=1")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    while "epoch 2/" not in process.stderr.readline():
        assert time.monotonic() < deadline
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    (run,) = runs_in(home)
    assert (run.info.status, run.data.tags["outcome"]) == ("KILLED", "killed")
    # Killed, not lost: what was recorded until then is there.
    assert run.data.metrics["train/loss"] > 0
    assert (home / "artifacts" / run.info.run_id / "artifacts" / "timeline" / "timeline.csv").exists()


def test_bad_data_ends_before_a_run_is_opened(tmp_path: Path, home: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is not a Parquet file")
    done = tft_exp("train", *SMALL, "data=bars", "data.path=broken.parquet", cwd=tmp_path)
    assert done.returncode == 2
    assert "broken.parquet" in done.stderr
    assert "Traceback" not in done.stderr
    assert runs_in(home) == []


def test_a_test_split_is_scored_with_the_best_weights(tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", *SMALL, "data.test_fraction=0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(home)
    assert run.data.metrics["summary/test_loss"] > 0
    assert run.data.metrics["summary/test_q_risk_p50"] > 0
    assert run.data.metrics["summary/test_peak_rss_mib"] > 0


def test_a_batch_that_does_not_fit_is_halved_and_added_up_twice(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plan's proposal left out, so that the card itself must say that the batch is too large."""
    overrides = ["model=tiny", "batch=auto", "batch.train=256", "batch.validation=64", "device=virtual_4gb", "device.capacity_mib=518"]
    overrides += ["trainer=quick", "trainer.max_epochs=1", "trainer.limit_train_batches=4", f"tracking.home={home}"]
    monkeypatch.setattr(experiment, "propose_batch", lambda config, shape: config)
    job = experiment.Job({"model": "tiny", "batch": "auto", "policy": "keep"}, overrides, "", tmp_path / "job")
    outcome = experiment.run(compose_config(overrides), job)
    assert outcome.outcome == "finished"
    train, accumulate = outcome.summary["batch/train"], outcome.summary["batch/accumulate"]
    assert train * accumulate == 256
    assert accumulate > 1
    (run,) = runs_in(home)
    tried = run.data.tags["batch_auto"].split("; ")
    assert tried[0] == "256 x 1 windows a step, 64 a validation batch"
    assert tried[-1] == f"{train:.0f} x {accumulate:.0f} windows a step, 64 a validation batch after an out-of-memory in train"
    assert run.data.tags["outcome"] == "finished"
    assert "out_of_memory_phase" not in run.data.tags
    assert run.data.metrics["summary/peak_reserved_mib"] <= 518 - 450


def test_the_plan_proposes_a_batch_that_needs_no_second_attempt(tmp_path: Path, home: Path) -> None:
    overrides = ["model=tiny", "batch=auto", "batch.train=256", "batch.validation=64", "device=virtual_4gb", "device.capacity_mib=530"]
    done = tft_exp("train", *overrides, "trainer=quick", "trainer.max_epochs=1", "trainer.limit_train_batches=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(home)
    assert "; " not in run.data.tags["batch_auto"]
    assert run.data.metrics["summary/batch/accumulate"] > 1
    assert run.data.metrics["summary/batch/train"] * run.data.metrics["summary/batch/accumulate"] == 256
    assert run.data.metrics["memory/prediction_error_pct"] == pytest.approx(0, abs=1)
    assert "peak memory predicted +0.0 %" in done.stderr + done.stdout


def test_a_run_on_a_cpu_is_predicted_on_top_of_its_process(sweep: Sweep) -> None:
    for run in sweep.runs:
        metrics = run.data.metrics
        assert run.data.tags["predicted_outcome"] == "no card"
        assert abs(metrics["summary/prediction_error_pct"]) < 30
        assert metrics["summary/predicted_peak_mib"] > metrics["summary/setup_peak_rss_mib"] - 60
