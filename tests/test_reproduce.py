"""A recorded run, run again through the real command line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import new_home, runs_in, tft_exp

SMALL = ["model=tiny", "trainer=quick", "device=virtual_4gb", "batch.train=32", "batch.validation=64", "trainer.limit_train_batches=4"]
BARS = Path(__file__).parent.parent / "tft_exp" / "demo"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    new_home(folder, empty_store)
    (source,) = BARS.glob("*1min*.parquet")
    (folder / "bars.parquet").write_bytes(source.read_bytes())
    done = tft_exp("train", *SMALL, "data.path=bars.parquet", "policy=recreate", "seed=3", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_is_reproduced_to_the_last_bit(recorded: Path) -> None:
    (run,) = runs_in(recorded / "mlruns")
    done = tft_exp("reproduce", run.info.run_id, cwd=recorded)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same configuration, data, code and versions" in done.stdout
    again = runs_in(recorded / "mlruns")[-1]
    assert again.data.tags["reproduces"] == run.info.run_id
    exact = [name for name in run.data.metrics if name.startswith(("train/", "val/", "naive/", "makeup/")) or "peak_allocated" in name]
    assert len(exact) > 15
    for name in exact:
        assert again.data.metrics[name] == run.data.metrics[name], name
    assert again.data.params == run.data.params


def test_what_differs_is_said_and_what_is_lost_is_shown(recorded: Path) -> None:
    run = runs_in(recorded / "mlruns")[0]
    path = recorded / "bars.parquet"
    original = path.read_bytes()
    table = pd.read_parquet(path)
    table["volume"] = table["volume"] * 1.5
    table["close"] = table["close"].where(table.index % 3 > 0, table["low"])
    table.to_parquet(path)
    done = tft_exp("reproduce", run.info.run_id, cwd=recorded)
    path.write_bytes(original)
    assert "differs: the data in bars.parquet: its bytes had the fingerprint" in done.stdout
    assert done.returncode == 1
    assert "train/loss" in done.stdout


def test_overrides_that_name_hydras_own_keys_are_refused(recorded: Path) -> None:
    """Such a key can name a class to import; a run never records one."""
    run = runs_in(recorded / "mlruns")[0]
    path = recorded / "mlruns" / "artifacts" / run.info.run_id / "artifacts" / "config" / "overrides.yaml"
    original = path.read_text()
    for bad in (
        "hydra.callbacks.x._target_=os.system",
        "+hydra.sweeper._target_=os.system",
        "hydra/launcher=ray",
        "+model._target_=os.system",
    ):
        path.write_text(f"{original}- {bad}\n")
        before = len(runs_in(recorded / "mlruns"))
        done = tft_exp("reproduce", run.info.run_id, cwd=recorded)
        assert done.returncode == 2, bad
        assert "Traceback" not in done.stderr
        assert len(runs_in(recorded / "mlruns")) == before
    path.write_text(original)


def test_a_run_that_is_not_there_is_said(recorded: Path) -> None:
    done = tft_exp("reproduce", "0" * 32, cwd=recorded)
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
