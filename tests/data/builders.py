"""Small tables of bars for the data tests, written as real files."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tft_exp.compose import compose_config
from tft_exp.config import Config
from tft_exp.data.dataset import Dataset, load_dataset

LOOKBACK, HORIZON = 8, 3


def bars(rows: int = 120, symbols: tuple[str, ...] = ("A",), step: str = "1min", seed: int = 0) -> pd.DataFrame:
    """Well-formed bars of each symbol: low <= open, close <= high."""
    rng = np.random.default_rng(seed)
    tables = []
    for number, symbol in enumerate(symbols):
        close = 100.0 * (number + 1) * np.exp(np.cumsum(rng.normal(0, 1e-3, rows)))
        open_ = close * np.exp(rng.normal(0, 5e-4, rows))
        tables.append(
            pd.DataFrame(
                {
                    "timestamp": pd.date_range("2024-01-01", periods=rows, freq=step, tz="UTC").as_unit("us"),
                    "symbol": symbol,
                    "open": open_,
                    "high": np.maximum(open_, close) * (1 + rng.uniform(0, 1e-3, rows)),
                    "low": np.minimum(open_, close) * (1 - rng.uniform(0, 1e-3, rows)),
                    "close": close,
                    "volume": rng.integers(1, 1000, rows),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def write(table: pd.DataFrame, path: Path) -> Path:
    table.to_parquet(path, index=False)
    return path


def config_for(path: Path | str, *overrides: str, features: str = "none") -> Config:
    # Without derived inputs the close itself is the target.
    target = ["data.target=close"] if features == "none" else []
    config = deepcopy(_composed(("data=bars", "data.path=unset", f"features={features}", *target, *overrides)))
    config.data.path = str(path)
    return config


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    # Hydra takes some 0.2 s for each, and most tests ask for one of a few.
    return compose_config(overrides)


def load(path: Path | str, *overrides: str, features: str = "none", lookback: int = LOOKBACK, horizon: int = HORIZON) -> Dataset:
    config = config_for(path, *overrides, features=features)
    return load_dataset(config.data, config.features, lookback=lookback, horizon=horizon)


def load_table(table: pd.DataFrame, folder: Path, *overrides: str, **more: Any) -> Dataset:
    return load(write(table, folder / "bars.parquet"), *overrides, **more)
