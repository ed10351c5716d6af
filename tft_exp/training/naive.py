"""Forecasts that need no model, scored like the model's: a flat or late model cannot look good beside them."""

from __future__ import annotations

import torch
from torch import Tensor

from tft_exp.data.rows import WindowedRows
from tft_exp.data.runs import Runs
from tft_exp.training.trainer import Quality, QualityMeter

SAMPLED_WINDOWS = 20_000
CHUNK = 8_192


def naive_qualities(rows: WindowedRows, windows: Tensor, quantiles: Tensor, season_length: int | None) -> dict[str, Quality]:
    """Quality of each naive forecast over `windows` (int32 [windows], first rows), by name.

    Each is an anchor plus the quantiles that the target's distance from this anchor had in the training windows, step
    by step of the horizon and pooled over entities in scaled units: `climatology` (anchor 0, the training mean of the
    entity), `persistence` (the last value seen), and `seasonal` (the value one season before, where a season is given).
    """
    anchors = {"climatology": None, "persistence": 1} | ({"seasonal": season_length} if season_length else {})
    return {name: _quality(rows, windows, quantiles, season) for name, season in anchors.items()}


def _quality(rows: WindowedRows, windows: Tensor, quantiles: Tensor, season: int | None) -> Quality:
    train = rows.windows["train"]
    sample = train[:: max(1, len(train) // SAMPLED_WINDOWS)]
    distance = _targets(rows, sample) - _anchor(rows, sample, season)
    spread = torch.quantile(distance, quantiles.to(distance), dim=0).T  # [horizon, quantiles]
    meter = QualityMeter(quantiles)
    for part in windows.split(CHUNK):
        meter.update(_anchor(rows, part, season)[..., None] + spread, rows.gather(Runs(part)))
    return meter.result()


def _targets(rows: WindowedRows, windows: Tensor) -> Tensor:
    steps = torch.arange(rows.lookback, rows.lookback + rows.horizon)
    return rows.tensors.target[windows[:, None] + steps]


def _anchor(rows: WindowedRows, windows: Tensor, season: int | None) -> Tensor:
    """The scaled value that each step of the horizon is forecast from, [windows, horizon]."""
    if season is None:
        return torch.zeros(len(windows), rows.horizon)
    ahead = torch.arange(rows.horizon)
    # The last season before the forecast, repeated; with a season of one bar that is the last value.
    back = rows.lookback - season + ahead % season
    return rows.tensors.target[windows[:, None] + back]
