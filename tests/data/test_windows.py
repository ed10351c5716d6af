"""Windows and splits: nothing leaks, nothing is lost, and a batch is what a plain loop would gather."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.builders import HORIZON, LOOKBACK, bars, config_for, load, load_table, write
from tft_exp.data.dataset import load_dataset
from tft_exp.data.reading import read_panel
from tft_exp.data.runs import Runs
from tft_exp.data.windows import choose_cuts, index_windows
from tft_exp.errors import DataError


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_windows_against_a_plain_loop(data: st.DataObject, tmp_path: Path) -> None:
    """Every run of rows of one entity without a gap, with all its targets in one split, is there once; no other is."""
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    lookback, horizon = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    warm_up = data.draw(st.integers(0, 5))
    tables = []
    for number, length in enumerate(lengths):
        table = bars(length, (chr(65 + number),), seed=number)
        steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 1, 1, 5, 6]), min_size=length, max_size=length))
        table["timestamp"] = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(np.cumsum(steps), "min")
        tables.append(table)
    path = write(pd.concat(tables).sample(frac=1, random_state=1), tmp_path / "bars.parquet")
    panel = read_panel(config_for(path, "data.max_gap=5min").data, ())
    cuts = choose_cuts([panel.time_us], 0.3, 0.2)
    index = index_windows(panel, cuts, warm_up=warm_up, lookback=lookback, horizon=horizon)

    expected: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    straddling, gap = 0, 5 * 60 * 1_000_000
    for first in range(panel.rows - lookback - horizon + 1):
        rows = range(first - warm_up, first + lookback + horizon)
        if rows[0] < 0:
            continue
        together = all(
            panel.entity[row] == panel.entity[first] and (row == rows[0] or panel.time_us[row] - panel.time_us[row - 1] <= gap)
            for row in rows
        )
        if not together:
            continue
        times = panel.time_us[first + lookback : first + lookback + horizon]
        splits = {"train" if t < cuts.validation_us else "validation" if t < cuts.test_us else "test" for t in times}
        if len(splits) == 1:
            expected[splits.pop()].append(first)
        else:
            straddling += 1
    assert {split: windows.rows(panel.arrays, split).tolist() for split, windows in index.by_split.items()} == expected
    assert all(np.all(np.diff(windows.firsts) > windows.counts[:-1]) for windows in index.by_split.values())
    assert index.straddling == straddling


def test_cuts_take_their_share_of_the_time_stamps() -> None:
    cuts = choose_cuts([np.repeat(np.arange(100), 3)], 0.2, 0.1)
    assert (cuts.validation_us, cuts.test_us) == (70, 90)
    assert choose_cuts([np.arange(100)], 0.2, 0.0).test_us == 100


@pytest.mark.parametrize("features", ["none", "ohlcv", "ohlcv_225"])
def test_nothing_after_the_cut_reaches_training(features: str, tmp_path: Path) -> None:
    table = bars(300, ("A", "B"))
    before = load_table(table, tmp_path, features=features)
    cut = pd.Timestamp(before.preprocessing["cuts"]["validation_us"], unit="us", tz="UTC")
    changed = table.copy()
    later = changed["timestamp"] >= cut
    changed.loc[later, ["open", "high", "low", "close"]] *= 3.0
    changed.loc[later, "volume"] += 100_000
    after = load_table(changed, tmp_path, features=features)
    assert before.preprocessing == after.preprocessing
    assert torch.equal(before.training_rows, after.training_rows)
    assert torch.equal(before.rows.windows["train"], after.rows.windows["train"])
    one, other = before.rows.gather(Runs(before.rows.windows["train"])), after.rows.gather(Runs(after.rows.windows["train"]))
    for a, b in zip([*one.inputs[:-1], *one[1:]], [*other.inputs[:-1], *other[1:]], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(before.rows.tensors.target, after.rows.tensors.target)


@pytest.mark.parametrize("scaling", ["entity", "all"])
def test_scaling_is_of_training_rows_and_can_be_undone(scaling: str, tmp_path: Path) -> None:
    table = bars(200, ("A", "B"))
    dataset = load_table(table, tmp_path, f"data.scaling={scaling}")
    assert len(dataset.preprocessing["scales"]["close"]["scale"]) == 2
    closes = table["close"].to_numpy().reshape(2, 200)
    train = closes[:, :160]
    mean, spread = (train.mean(1), train.std(1)) if scaling == "entity" else (np.repeat(train.mean(), 2), np.repeat(train.std(), 2))
    np.testing.assert_allclose(dataset.rows.tensors.target_location, mean, rtol=1e-6)
    np.testing.assert_allclose(dataset.rows.tensors.target_scale, spread, rtol=1e-6)
    batch = dataset.rows.gather(Runs(dataset.rows.windows["validation"]))
    own_unit = batch.target * batch.scale[:, None] + batch.location[:, None]
    ahead = np.arange(LOOKBACK, LOOKBACK + HORIZON)
    expected = [closes[first // 200, first % 200 + ahead] for first in dataset.rows.windows["validation"].tolist()]
    np.testing.assert_allclose(own_unit, np.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("origin", [0.0, 1e6, 1e12, 1e13])
def test_a_large_mean_hides_no_spread(origin: float, tmp_path: Path) -> None:
    table = bars()
    table["level"] = origin + np.arange(120) % 2
    table["still"] = origin + 0.1
    dataset = load_table(table, tmp_path, "data.observed_real=[level,still]")
    level, still = dataset.rows.tensors.observed_reals[:, 1:].unbind(1)
    assert level.tolist() == [-1.0, 1.0] * 60
    assert not still.any()
    assert dataset.report.constants == ["still"]


def test_what_a_later_loader_needs_is_kept(tmp_path: Path) -> None:
    table = bars(300, ("A", "B")).assign(sector=lambda rows: np.where(rows["symbol"] == "A", "tech", "energy"))
    dataset = load_table(table, tmp_path, "data.static_categorical=[sector]", features="ohlcv_225")
    kept = json.loads(json.dumps(dataset.preprocessing, allow_nan=False))
    assert kept == dataset.preprocessing
    assert kept["vocabularies"] == {"sector": ["energy", "tech"], "entity": ["A", "B"]}
    assert set(kept["scales"]) == set(dataset.roles.static_reals + dataset.roles.observed_reals)
    assert (kept["lookback"], kept["horizon"], kept["features"], kept["target"]) == (LOOKBACK, HORIZON, "ohlcv_225", "log_return")
    # The derived static inputs are of training rows, which new rows do not hold.
    training = np.log(table["close"].to_numpy().reshape(2, 300)[:, 60:240])
    np.testing.assert_allclose(kept["static_values"]["mean_log_close"], training.mean(1), rtol=1e-12)


def test_names_rows_and_bytes_of_a_dataset(tmp_path: Path) -> None:
    table = bars(120, ("A", "B")).assign(mood="calm", fee=1.0, plan=lambda rows: rows["open"], weekday=lambda rows: rows["volume"] % 5)
    roles = {"observed_categorical": "mood", "static_real": "fee", "known_real": "plan", "known_categorical": "weekday"}
    dataset = load_table(table, tmp_path, *(f"data.{role}=[{column}]" for role, column in roles.items()))
    assert (dataset.static_names, dataset.future_names) == (["fee", "entity"], ["plan", "weekday"])
    assert dataset.past_names == ["plan", "weekday", "close", "mood"]
    assert dataset.entity_names == ["A", "B"]
    assert dataset.training_rows.tolist() == ([True] * 96 + [False] * 24) * 2
    assert dataset.cuts.validation_us == int(table["timestamp"][96].timestamp() * 1e6)
    rows, windows = 240, sum(len(index) for index in dataset.rows.windows.values())
    # float32: known, observed, target; int64: known and observed categoricals, the entity; int32: entities' first rows, windows.
    assert dataset.rows.bytes == rows * (3 * 4 + 2 * 8) + 2 * (4 + 8 + 2 * 4 + 4) + windows * 4


def test_a_batch_is_what_a_plain_loop_gathers(tmp_path: Path) -> None:
    table = bars(120, ("A", "B"))
    table["weekday"] = table["timestamp"].dt.day_of_week
    table["mood"] = np.where(table["close"] > table["open"], "up", "down")
    roles = {"known_categorical": "weekday", "observed_categorical": "mood", "observed_real": "volume", "known_real": "open"}
    dataset = load_table(table, tmp_path, *(f"data.{role}=[{column}]" for role, column in roles.items()))
    windows = dataset.rows.windows["train"][[0, 5, 100]]
    batch, t = dataset.rows.gather(Runs(windows)), dataset.rows.tensors
    for number, first in enumerate(windows.tolist()):
        entity = first // 120
        middle, end = first + LOOKBACK, first + LOOKBACK + HORIZON
        assert torch.equal(batch.inputs.static_categoricals[number], t.static_categoricals[entity])
        assert torch.equal(batch.inputs.known_reals[number], t.known_reals[first:end])
        assert torch.equal(batch.inputs.known_categoricals[number], t.known_categoricals[first:end])
        assert torch.equal(batch.inputs.observed_reals[number], t.observed_reals[first:middle])
        assert torch.equal(batch.inputs.observed_categoricals[number], t.observed_categoricals[first:middle])
        assert torch.equal(batch.target[number], t.target[middle:end])
    assert dataset.roles.observed == ["close", "volume", "mood"]
    assert dataset.roles.known == ["open", "weekday"]
    assert (dataset.sizes.static, dataset.sizes.known, dataset.sizes.observed) == (1, 2, 3)


def test_the_targets_past_is_an_input_once(tmp_path: Path) -> None:
    assert load_table(bars(), tmp_path, "data.observed_real=[close]").roles.observed == ["close"]
    derived = load_table(bars(), tmp_path, "data.target=log_volume", features="ohlcv")
    assert derived.roles.observed.count("log_volume") == 1
    assert len(derived.roles.observed) == 11


def test_the_shape_of_the_report() -> None:
    sizes = load("demo:es_fut_1min", "data.max_gap=5min", features="ohlcv_225", lookback=60, horizon=10).sizes
    assert (sizes.static, sizes.known, sizes.observed) == (5, 10, 210)


def test_the_packaged_bars_have_the_gaps_of_their_notes() -> None:
    minute = load("demo:es_fut_1min", "data.max_gap=1min", features="ohlcv", lookback=10, horizon=2).report
    assert (minute.rows_read, minute.rows_used) == (2264, 2264)
    panel = read_panel(config_for("demo:es_fut_1min", "data.max_gap=5min").data, ())
    minutes = np.delete(np.diff(panel.time_us), panel.starts[1:] - 1) // 60_000_000
    assert ((minutes > 1).sum(), (minutes - 1).sum()) == (36, 38)
    assert len(panel.starts) == 2
    seconds = load("demo:es_fut_5s", "data.max_gap=60s", features="ohlcv", lookback=10, horizon=2).report
    assert seconds.rows_read == 15832
    assert "06:30:05 after 2013-09-02 15:29:55" in seconds.render()


def test_no_window_at_all_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_table(bars(60), tmp_path, "data.validation_fraction=0.02", lookback=40, horizon=10)
    assert "there is no validation window" in str(caught.value)
    assert "60 rows" in str(caught.value)


def test_there_is_no_python_loop_over_rows_or_windows(tmp_path: Path) -> None:
    """Not a timed test: a loop over rows or windows would show as a call per row."""
    import cProfile
    import pstats

    path = write(bars(30_000, ("A", "B")), tmp_path / "bars.parquet")
    config = config_for(path, features="ohlcv")
    profile = cProfile.Profile()
    profile.enable()
    dataset = load_dataset(config.data, config.features, lookback=60, horizon=10)
    dataset.rows.gather(Runs(dataset.rows.windows["train"][:4096]))
    profile.disable()
    assert pstats.Stats(profile).total_calls < 30_000  # type: ignore[attr-defined]
