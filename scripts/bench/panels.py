"""The rows that all programs of a benchmark read: synthetic ones, ETTh1 and daily equities, each as one temporary Parquet file.

ETTh1's licence allows no altered copy: what is made of it lies in the caller's temporary folder and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from job import ENTITY, STEP, TARGET, TIME, Panel

VALIDATION_FRACTION = 0.2  # of the steps, the last ones


def synthetic(folder: Path, *, entities: int, steps: int, known: int = 4, observed: int = 10, seed: int = 0) -> Panel:
    """A wave and an autoregression for each entity, and inputs that are noise: what is measured is time, not quality."""
    random = np.random.default_rng(seed)
    parts = []
    for entity in range(entities):
        phase = 2 * np.pi * (np.arange(steps) / 24 + random.random())
        noise = pd.Series(random.normal(size=steps)).ewm(alpha=0.3).mean().to_numpy()
        part = pd.DataFrame({ENTITY: f"E{entity:03d}", STEP: np.arange(steps), TARGET: np.sin(phase) + noise})
        for number in range(known):
            part[f"known_{number}"] = np.sin(phase * (number + 1) / 2)
        for number in range(observed):
            part[f"observed_{number}"] = random.normal(size=steps)
        parts.append(part)
    frame = pd.concat(parts, ignore_index=True)
    frame[TIME] = pd.Timestamp("2000-01-01") + pd.to_timedelta(frame[STEP], unit="min")
    return write(frame, folder / f"synthetic_{entities}_{steps}.parquet")


def etth1(folder: Path, data: Path) -> Panel:
    """Its seven series as entities, each forecast from its own past and the calendar: hour and weekday."""
    wide = pd.read_csv(data / "ETTh1.csv", parse_dates=["date"]).rename(columns={"date": TIME})
    frame = wide.melt(id_vars=TIME, var_name=ENTITY, value_name=TARGET).sort_values([ENTITY, TIME], ignore_index=True)
    frame[STEP] = frame.groupby(ENTITY).cumcount()
    add_waves(frame, "hour", frame[TIME].dt.hour / 24)
    add_waves(frame, "weekday", frame[TIME].dt.dayofweek / 7)
    return write(frame, folder / "etth1.parquet")


def equities(folder: Path, data: Path, target: str = "log_return") -> Panel:
    """Thirty US stocks, daily: log return (or `target`) from bars' shape, volume and the calendar: weekday and day of the year."""
    bars = pd.read_parquet(data / "us_equities_daily_30.parquet").rename(columns={"symbol": ENTITY, "timestamp": TIME})
    bars[ENTITY] = bars[ENTITY].astype(str)
    bars = bars.sort_values([ENTITY, TIME], ignore_index=True)
    bars["log_return"] = np.log(bars["close"]).groupby(bars[ENTITY]).diff()
    bars["body"] = np.log(bars["close"] / bars["open"])
    bars["log_range"] = np.log(bars["high"] / bars["low"])
    bars["log_volume"] = np.log(bars["volume"])
    bars["log_volume_change"] = bars["log_volume"].groupby(bars[ENTITY]).diff()
    features = ["log_return", "body", "log_range", "log_volume", "log_volume_change"]
    frame = bars.loc[bars["log_return"].notna(), [ENTITY, TIME, *features]].reset_index(drop=True)
    frame = frame.rename(columns={target: TARGET})
    frame.columns = [name if name in (ENTITY, TIME, TARGET) else f"observed_{name}" for name in frame.columns]
    frame[STEP] = frame.groupby(ENTITY).cumcount()
    add_waves(frame, "weekday", frame[TIME].dt.dayofweek / 7)
    add_waves(frame, "yearday", frame[TIME].dt.dayofyear / 366)
    return write(frame, folder / f"equities_{target}.parquet")


def add_waves(frame: pd.DataFrame, name: str, turns: pd.Series) -> None:
    frame[f"known_{name}_sin"], frame[f"known_{name}_cos"] = np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)


def write(frame: pd.DataFrame, path: Path) -> Panel:
    """Standardise all reals by each entity's training rows, in float32, and write rows sorted by entity and step."""
    lengths = frame.groupby(ENTITY).size()
    if lengths.nunique() != 1:
        raise ValueError(f"entities of {path.name} differ in length: {lengths.min()} to {lengths.max()} rows")
    steps = int(lengths.iloc[0])
    cut = steps - round(steps * VALIDATION_FRACTION)
    known = [name for name in frame.columns if name.startswith("known_")]
    observed = [name for name in frame.columns if name.startswith("observed_")]
    training = frame[frame[STEP] < cut].groupby(ENTITY)
    for name in [TARGET, *known, *observed]:
        mean, deviation = training[name].mean(), training[name].std(ddof=0)
        frame[name] = ((frame[name] - frame[ENTITY].map(mean)) / frame[ENTITY].map(deviation)).astype(np.float32)
    frame[[ENTITY, STEP, TIME, TARGET, *known, *observed]].to_parquet(path, index=False)
    return Panel(str(path), known, observed, len(lengths), steps, cut)


REAL: dict[str, Callable[[Path, Path], Panel]] = {
    "ETTh1": etth1,
    "equities": equities,
    "equities volume": lambda folder, data: equities(folder, data, "log_volume"),
}
