"""The same sweep through other launchers and a sweeper that searches, for real."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import runs_in, tft_exp

CPU = ["model=tiny", "trainer=quick", "device=cpu", "batch.train=32", "batch.validation=64", "trainer.limit_train_batches=4"]


def test_a_sweeper_that_searches_gets_memory_and_loss_also_of_what_was_done_before(tmp_path: Path, home: Path) -> None:
    sweep = ["model.hidden_size=choice(8,16)", *CPU, "hydra/sweeper=optuna", "hydra.sweeper.direction=[minimize,minimize]"]
    sweep += ["hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=1"]
    done = tft_exp("train", "-m", *sweep, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = runs_in(home)
    assert {run.data.params["model.hidden_size"] for run in runs} == {"8", "16"}
    assert len(runs) + done.stderr.count("done before") == 4
    assert "Failed" not in done.stderr
    (path,) = (home / "jobs").rglob("optimization_results.yaml")
    for solution in yaml.safe_load(path.read_text())["solutions"]:
        alike = [run for run in runs if run.data.params["model.hidden_size"] == str(solution["params"]["model.hidden_size"])]
        assert solution["values"] in [[run.data.metrics[f"summary/{name}"] for name in ("peak_rss_mib", "val_loss")] for run in alike]


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_other_launchers_run_the_same_sweep(launcher: str, tmp_path: Path, home: Path) -> None:
    done = tft_exp("train", "-m", "seed=0,1", *CPU, f"hydra/launcher={launcher}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = runs_in(home)
    assert [(run.info.status, run.data.tags["outcome"]) for run in runs] == [("FINISHED", "finished")] * 2
    assert len({run.data.tags["sweep_id"] for run in runs}) == 1
    assert "2 finished" in done.stdout
