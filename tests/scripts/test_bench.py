"""The benchmarks against peers, without the peers: what they count and judge, and our own worker at a tiny size."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from tft_exp.model.quantiles import quantile_loss

FOLDER = Path(__file__).parents[2] / "scripts" / "bench"
MODULES = ("job", "worker", "panels", "programs", "bench_race", "bench_peers")


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    """The scripts' modules, which find each other beside themselves."""
    sys.path.insert(0, str(FOLDER))
    try:
        return SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))


def test_the_loss_is_the_trainers(bench: SimpleNamespace) -> None:
    forecast, target, levels = torch.randn(5, 4, 3), torch.randn(5, 4), (0.1, 0.5, 0.9)
    ours = float(quantile_loss(forecast, target, torch.tensor(levels)))
    assert bench.worker.quantile_loss(forecast.numpy(), target.numpy(), levels) == pytest.approx(ours, rel=1e-5)


def test_evaluated_windows_count_from_the_last_one(bench: SimpleNamespace) -> None:
    panel = bench.job.Panel("rows.parquet", ["known_0"], [], entities=2, steps=30, cut=20)
    job = bench.job.Job("race", panel, hidden=8, started=0.0, lookback=5, horizon=3, stride=4)
    assert [first for first in range(30) if job.evaluated(first)] == [23, 27, *range(31, 30)]
    assert job.evaluation_windows == 4
    assert job.training_windows == 2 * 13
    assert bench.job.Job.from_json(job.to_json()) == job


def test_a_panel_is_standardised_by_its_training_rows(bench: SimpleNamespace, tmp_path: Path) -> None:
    panel = bench.panels.synthetic(tmp_path, entities=2, steps=50)
    rows = pd.read_parquet(panel.path)
    training = rows[rows["step"] < panel.cut]
    for name in ("target", *panel.known, *panel.observed):
        assert training.groupby("entity")[name].mean().to_numpy() == pytest.approx(0.0, abs=1e-5)
        assert training.groupby("entity")[name].std(ddof=0).to_numpy() == pytest.approx(1.0, rel=1e-4)
    # 15 past inputs with the target's own past, and 4 known ones.
    assert (1 + len(panel.observed) + len(panel.known), len(panel.known), panel.cut) == (15, 4, 40)


def test_a_variant_of_ours_is_a_name_overrides_and_variables(bench: SimpleNamespace) -> None:
    variant = bench.programs.our_variant("runs of 8: batch.train=8 env:NAME=a=b:c model.dropout=0")
    assert (variant.name, variant.overrides, variant.variables) == ("runs of 8", ["batch.train=8", "model.dropout=0"], {"NAME": "a=b:c"})
    assert bench.programs.our_variant("tft-exp").overrides == []


def curve(bench: SimpleNamespace, *losses: float, pace: float) -> dict[str, list[float]]:
    columns = {key: [pace * number for number in range(len(losses))] for key in bench.bench_race.COLUMNS}
    return columns | {"loss": list(losses)}


def test_our_variants_and_the_peers_are_told_apart(bench: SimpleNamespace) -> None:
    assert bench.bench_race.parted(["darts", "runs of 8", "tft-exp"]) == (["runs of 8", "tft-exp"], ["darts"])


def test_the_loss_to_reach_is_the_best_peers_mean(bench: SimpleNamespace) -> None:
    curves = {
        "ours": {"0": curve(bench, 9, 4, 2, pace=1.0), "1": curve(bench, 9, 5, 3, pace=1.0)},
        "darts": {"0": curve(bench, 9, 6, 3, pace=10.0), "1": curve(bench, 9, 6, 5, 6, pace=10.0)},
        "neuralforecast": {"0": curve(bench, 9, 8, pace=2.0), "1": curve(bench, 9, 7, pace=2.0)},
    }
    heat = bench.bench_race.judge(curves)
    assert (heat["best peer"], heat["target"]) == ("darts", 4.0)
    assert heat["by seed"]["since_start"] == {"ours": [1.0, 2.0], "darts": [20.0, math.inf], "neuralforecast": [math.inf, math.inf]}
    # Of the mean over seeds of the lowest loss so far: 9, 4.5, 2.5 and 9, 6, 4, 4.
    assert heat["of mean"]["since_start"] == {"ours": 2.0, "darts": 20.0, "neuralforecast": math.inf}
    assert heat["to a peer's own best"] == {"darts": {"darts": 20.0, "ours": 2.0}, "neuralforecast": {"neuralforecast": 2.0, "ours": 1.0}}


@pytest.mark.parametrize(("name", "more", "times"), [("train", True, [2.0, 3.0]), ("epoch", False, [0.5, 1 / 3])])
def test_times_better_is_a_ratio_of_pairs(bench: SimpleNamespace, name: str, more: bool, times: list[float]) -> None:
    results = {"ours": {name: {"wall": [20.0, 30.0]}}, "one": {name: {"wall": [10.0, 10.0]}}, "two": {name: {"wall": [5.0, 50.0]}}}
    line = bench.bench_peers.Line(name, "", more)
    assert bench.bench_peers.ratios(results, "ours", "one", line, "wall") == pytest.approx(times)
    assert bench.bench_peers.best_peer(results, ["one", "two"], line, "wall") == ("two" if more else "one")


def test_our_worker_races_and_measures(bench: SimpleNamespace, tmp_path: Path) -> None:
    panel = bench.panels.synthetic(tmp_path, entities=2, steps=80, observed=1)
    small = {"heads": 1, "lookback": 6, "horizon": 2, "batch": 8, "threads": 1, "steps": 4, "evaluate_every": 2, "batches": 1, "blocks": 1}
    ours = bench.programs.our_variant("tft-exp: optimizer.learning_rate=0.01")

    race = bench.job.Job("race", panel, hidden=4, started=0.0, **small)
    found = ours.run(race)
    assert [point["step"] for point in found["curve"]] == [0, 2, 4]
    assert found["best"] == min(point["loss"] for point in found["curve"])
    assert (found["evaluation_windows"], found["training_windows"]) == (race.evaluation_windows, race.training_windows)
    rows = pd.read_parquet(panel.path)
    windows = [
        of_one[first : first + 2]
        for of_one in (rows["target"].to_numpy()[:80], rows["target"].to_numpy()[80:])
        for first in range(panel.cut, 80 - 2 + 1)
    ]
    assert found["target_mean"] == pytest.approx(np.mean(windows), abs=1e-4)

    found = ours.run(bench.job.Job("measure", panel, hidden=4, started=0.0, **small))
    assert all(len(found[name]["wall"]) == 1 for name in ("train", "loader", "infer"))
    assert found["epoch_seconds"]["wall"] > 0
