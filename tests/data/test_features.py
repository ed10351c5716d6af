"""Derived inputs: values by hand, causal, and closed within their segment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.builders import bars, config_for, write
from tft_exp.config import FeatureSet
from tft_exp.data.features import SPANS_225, Features, derive, observed_names, trailing, warm_up_rows
from tft_exp.data.reading import read_panel

SETS = [FeatureSet.ohlcv, FeatureSet.ohlcv_225]


def derived(table: pd.DataFrame, folder: Path, kind: FeatureSet, *overrides: str) -> Features:
    config = config_for(write(table, folder / "bars.parquet"), *overrides, features=kind.value)
    return derive(read_panel(config.data, observed_names(kind)), config.data.bars, kind)


def columns(features: Features) -> dict[str, np.ndarray]:
    return {**features.observed, **features.known}


def test_values_of_ohlcv_by_hand(tmp_path: Path) -> None:
    table = bars(40)
    features = derived(table, tmp_path, FeatureSet.ohlcv).observed
    row, before = table.iloc[35], table.iloc[34]
    log = np.log
    returns = np.diff(log(table["close"]))
    expected = {
        "log_return": log(row["close"] / before["close"]),
        "log_range": log(row["high"] / row["low"]),
        "body": log(row["close"] / row["open"]),
        "upper_shadow": log(row["high"] / max(row["open"], row["close"])),
        "lower_shadow": log(min(row["open"], row["close"]) / row["low"]),
        "close_position": (row["close"] - row["low"]) / (row["high"] - row["low"]),
        "log_volume": log(1 + row["volume"]),
        "log_volume_change": log((1 + row["volume"]) / (1 + before["volume"])),
        **{f"volatility_{n}": np.sqrt(np.mean(returns[35 - n : 35] ** 2)) for n in (5, 10, 30)},
    }
    assert set(expected) == set(features) == set(observed_names(FeatureSet.ohlcv))
    for name, value in expected.items():
        assert features[name][35] == pytest.approx(value, rel=1e-9), name


def test_values_of_the_225_by_hand(tmp_path: Path) -> None:
    table = bars(90)
    features = derived(table, tmp_path, FeatureSet.ohlcv_225).observed
    n, row = 10, 80
    window = table.iloc[row - n + 1 : row + 1]
    returns = np.diff(np.log(table["close"]))[row - n : row]
    close, volume = np.log(table["close"][row]), np.log1p(window["volume"])
    ranges = np.log(window["high"] / window["low"])
    top, bottom = np.log(window["high"].max()), np.log(window["low"].min())
    typical = (window["high"] + window["low"] + window["close"]) / 3
    expected = {
        "return": returns.sum(),
        "volatility": np.sqrt(np.mean(returns**2)),
        "downside": np.sqrt(np.mean(np.minimum(returns, 0) ** 2)),
        "absolute_return": np.mean(np.abs(returns)),
        "range_mean": ranges.mean(),
        "range_max": ranges.max(),
        "channel": top - bottom,
        "channel_position": (close - bottom) / (top - bottom),
        "efficiency": abs(returns.sum()) / np.abs(returns).sum(),
        "up_share": np.mean(returns > 0),
        "volume_mean": volume.mean(),
        "volume_ratio": volume.iloc[-1] - volume.mean(),
        "volume_deviation": volume.std(ddof=0),
        "vwap_distance": close - np.log((typical * window["volume"]).sum() / window["volume"].sum()),
    }
    assert len(expected) == 14
    for kind, value in expected.items():
        assert features[f"{kind}_{n}"][row] == pytest.approx(value, rel=1e-7), kind


def test_the_shape_of_the_report(tmp_path: Path) -> None:
    features = derived(bars(2000), tmp_path, FeatureSet.ohlcv_225)
    assert (len(features.static_sources), len(features.known), len(features.observed)) == (4, 10, 210)
    stacked = np.stack([values[70:] for values in features.observed.values()])
    assert np.all(np.isfinite(stacked))
    assert np.all(stacked.std(axis=1) > 0)
    # No input is another one, scaled or shifted.
    same = np.abs(np.corrcoef(stacked)) > 1 - 1e-12
    assert same.sum() == 210


def test_the_calendar(tmp_path: Path) -> None:
    stamps = ["2024-02-29 12:15:00", "2024-12-30 00:00:00"]  # a Thursday and a Monday
    table = bars(2).assign(timestamp=pd.to_datetime(stamps, utc=True))
    known = derived(table, tmp_path, FeatureSet.ohlcv_225).known
    turns = {"time_of_day": (12.25 / 24, 0), "day_of_week": (3 / 7, 0), "minute_of_hour": (0.25, 0)}
    turns |= {"day_of_month": ((28 + 12.25 / 24) / 31, 29 / 31), "day_of_year": ((59 + 12.25 / 24) / 366, 364 / 366)}
    assert len(known) == 2 * len(turns)
    for name, parts in turns.items():
        assert known[f"{name}_sin"] == pytest.approx(np.sin(2 * np.pi * np.array(parts)), abs=1e-9), name
        assert known[f"{name}_cos"] == pytest.approx(np.cos(2 * np.pi * np.array(parts)), abs=1e-9), name


@pytest.mark.parametrize("kind", SETS)
def test_no_feature_sees_the_future(kind: FeatureSet, tmp_path: Path) -> None:
    table = bars(200)
    before = columns(derived(table, tmp_path, kind))
    changed = table.copy()
    changed.loc[150:, ["open", "high", "low", "close"]] *= 1.5
    changed.loc[150:, "volume"] += 7
    after = columns(derived(changed, tmp_path, kind))
    for name, values in before.items():
        assert np.array_equal(values[:150], after[name][:150]), name
    assert any(not np.array_equal(values[150:], after[name][150:]) for name, values in before.items())


@pytest.mark.parametrize("kind", SETS)
def test_no_feature_crosses_a_gap(kind: FeatureSet, tmp_path: Path) -> None:
    table = bars(200)
    table.loc[100:, "timestamp"] += pd.Timedelta("2h")
    before = columns(derived(table, tmp_path, kind, "data.max_gap=5min"))
    changed = table.copy()
    changed.loc[:99, ["open", "high", "low", "close"]] *= 0.3
    changed.loc[:99, "volume"] += 1000
    after = columns(derived(changed, tmp_path, kind, "data.max_gap=5min"))
    usable = slice(100 + warm_up_rows(kind), 200)
    for name, values in before.items():
        assert np.array_equal(values[usable], after[name][usable]), name


def test_still_bars_give_no_division_by_zero(tmp_path: Path) -> None:
    table = bars(90)
    table[["open", "high", "low", "close"]] = 100.0
    table["volume"] = 0
    for kind in SETS:
        for name, values in derived(table, tmp_path, kind).observed.items():
            assert np.all(np.isfinite(values)), name


def test_a_volume_that_stands_still_has_no_deviation(tmp_path: Path) -> None:
    features = derived(bars(90).assign(volume=1000), tmp_path, FeatureSet.ohlcv_225).observed
    for span in SPANS_225:  # in some of them the two means differ in their last bits
        assert not features[f"volume_deviation_{span}"][60:].any(), span


def test_trailing_against_numpy() -> None:
    values = np.random.default_rng(0).normal(size=50)
    sums, tops = trailing(values, (3, 7)), trailing(values, (1, 7), np.maximum)
    for row in range(10, 50):
        assert sums[3][row] == pytest.approx(values[row - 2 : row + 1].sum())
        assert sums[7][row] == pytest.approx(values[row - 6 : row + 1].sum())
        assert tops[1][row] == values[row]
        assert tops[7][row] == values[row - 6 : row + 1].max()
