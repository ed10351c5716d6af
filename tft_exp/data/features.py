"""Inputs derived from bars. All are causal, and none reaches over the start of its segment.

With time counted in bars, a future bar's calendar is that of the bar that came: that it came at this time is known to
the model through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tft_exp.config import BarColumns, FeatureSet
from tft_exp.data.panel import Panel

SPANS_OHLCV = (5, 10, 30)
# Fifteen spans, from a few bars to an hour of minute bars.
SPANS_225 = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 50, 60)
# A return over one bar is the target's past as a rule, so that it takes the place of the longest but one.
RETURN_SPANS_225 = (1, *(span for span in SPANS_225 if span != 50))

OHLCV = ("log_return", "log_range", "body", "upper_shadow", "lower_shadow", "close_position", "log_volume", "log_volume_change")
KINDS_225 = (
    "return",
    "volatility",
    "downside",
    "absolute_return",
    "range_mean",
    "range_max",
    "channel",
    "channel_position",
    "efficiency",
    "up_share",
    "volume_mean",
    "volume_ratio",
    "volume_deviation",
    "vwap_distance",
)
# Named by what their mean over an entity's training rows is taken of.
STATIC_225 = ("log_close", "log_return_squared", "log_range", "log_volume")

DAY = 86_400_000_000
CALENDAR: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "time_of_day": lambda us: (us % DAY) / DAY,
    "day_of_week": lambda us: ((us // DAY + 3) % 7) / 7,  # 1970-01-01 was a Thursday
    "minute_of_hour": lambda us: (us % (DAY // 24)) / (DAY // 24),
    "day_of_month": lambda us: _within(us, "M", 31),
    "day_of_year": lambda us: _within(us, "Y", 366),
}
CALENDAR_OHLCV = ("time_of_day", "day_of_week")


@dataclass(frozen=True)
class Features:
    """Derived columns, one entry a row. The rows of a segment's warm-up (`warm_up_rows`) hold nothing of meaning.

    `static_sources` are rows' values whose mean over an entity's training rows makes its static inputs.
    """

    observed: dict[str, np.ndarray]
    known: dict[str, np.ndarray]
    static_sources: dict[str, np.ndarray]


def observed_names(kind: FeatureSet) -> tuple[str, ...]:
    """Names of the derived observed inputs; each can be the target."""
    if kind is FeatureSet.ohlcv:
        return (*OHLCV, *(f"volatility_{span}" for span in SPANS_OHLCV))
    if kind is FeatureSet.ohlcv_225:
        named = [[f"{name}_{span}" for span in _spans(name)] for name in KINDS_225]
        return tuple("log_return" if name == "return_1" else name for names in named for name in names)
    return ()


def known_names(kind: FeatureSet) -> tuple[str, ...]:
    """Names of the derived inputs that are known ahead of time."""
    calendars = {FeatureSet.none: (), FeatureSet.ohlcv: CALENDAR_OHLCV, FeatureSet.ohlcv_225: tuple(CALENDAR)}[kind]
    return tuple(f"{name}_{wave}" for name in calendars for wave in ("sin", "cos"))


def static_names(kind: FeatureSet) -> tuple[str, ...]:
    """Names of the derived static inputs, each the mean of a row's value over an entity's training rows."""
    return tuple(f"mean_{name}" for name in STATIC_225) if kind is FeatureSet.ohlcv_225 else ()


def _spans(kind: str) -> Sequence[int]:
    return RETURN_SPANS_225 if kind == "return" else SPANS_225


def derive(panel: Panel, columns: BarColumns, kind: FeatureSet, block: slice | None = None) -> Features:
    """The derived inputs of a feature set for a block of rows, or for all. float64, [rows] each; a row's values are the same
    whatever block it is derived in."""
    if kind is FeatureSet.none:
        return Features({}, {}, {})
    block = block or slice(0, panel.rows)
    begin = max(0, block.start - warm_up_rows(kind))  # as far as any value looks back
    bars = {name: panel.reals[column][begin : block.stop].astype(np.float64, copy=False) for name, column in vars(columns).items()}

    def own(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: column[block.start - begin :] for name, column in values.items()}

    known = _calendar(panel.time_us[block], CALENDAR_OHLCV if kind is FeatureSet.ohlcv else tuple(CALENDAR))
    if kind is FeatureSet.ohlcv:
        return Features(own(_ohlcv(bars)), known, {})
    return Features(own(_ohlcv_225(bars)), known, own(_static_sources(bars)))


def _calendar(time_us: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    waves: dict[str, np.ndarray] = {}
    for name in names:
        angle = 2.0 * np.pi * CALENDAR[name](time_us)
        waves[f"{name}_sin"], waves[f"{name}_cos"] = np.sin(angle), np.cos(angle)
    return waves


def _within(time_us: np.ndarray, unit: str, days: int) -> np.ndarray:
    """How much of its month or year has passed, in days of the longest one."""
    stamps = time_us.astype("datetime64[us]")
    passed: np.ndarray = stamps - stamps.astype(f"datetime64[{unit}]").astype("datetime64[us]")
    return passed.astype(np.int64) / (DAY * days)


def _ohlcv(bars: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    open_, high, low, close = (np.log(bars[name]) for name in ("open", "high", "low", "close"))
    volume = np.log1p(bars["volume"])
    returns = _change(close, 1)
    spread = bars["high"] - bars["low"]
    values = {
        "log_return": returns,
        "log_range": high - low,
        "body": close - open_,
        "upper_shadow": high - np.maximum(open_, close),
        "lower_shadow": np.minimum(open_, close) - low,
        "close_position": np.divide(bars["close"] - bars["low"], spread, out=np.full_like(spread, 0.5), where=spread > 0),
        "log_volume": volume,
        "log_volume_change": _change(volume, 1),
    }
    squares = trailing(returns**2, SPANS_OHLCV)
    return values | {f"volatility_{span}": np.sqrt(squares[span] / span) for span in SPANS_OHLCV}


def _ohlcv_225(bars: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    high, low, close = (np.log(bars[name]) for name in ("high", "low", "close"))
    volume = np.log1p(bars["volume"])
    returns = _change(close, 1)
    up = (returns > 0).astype(np.float64)
    typical = (bars["high"] + bars["low"] + bars["close"]) / 3.0
    sums = {
        name: trailing(series, SPANS_225)
        for name, series in {
            "square": returns**2,
            "downside": np.minimum(returns, 0.0) ** 2,
            "absolute": np.abs(returns),
            "range": high - low,
            "up": up,
            "volume": volume,
            "volume_square": volume**2,
            "traded": bars["volume"],
            "turnover": typical * bars["volume"],
        }.items()
    }
    largest_range = trailing(high - low, SPANS_225, np.maximum)
    top, bottom = trailing(high, SPANS_225, np.maximum), trailing(low, SPANS_225, np.minimum)
    values = {("log_return" if span == 1 else f"return_{span}"): _change(close, span) for span in RETURN_SPANS_225}
    for span in SPANS_225:
        mean_volume = sums["volume"][span] / span
        channel = top[span] - bottom[span]
        path = sums["absolute"][span]
        traded = sums["traded"][span]
        average = np.divide(sums["turnover"][span], traded, out=typical.copy(), where=traded > 0)
        values |= {
            f"volatility_{span}": np.sqrt(sums["square"][span] / span),
            f"downside_{span}": np.sqrt(sums["downside"][span] / span),
            f"absolute_return_{span}": path / span,
            f"range_mean_{span}": sums["range"][span] / span,
            f"range_max_{span}": largest_range[span],
            f"channel_{span}": channel,
            f"channel_position_{span}": np.divide(close - bottom[span], channel, out=np.full_like(channel, 0.5), where=channel > 0),
            f"efficiency_{span}": np.divide(np.abs(_change(close, span)), path, out=np.zeros_like(path), where=path > 0),
            f"up_share_{span}": sums["up"][span] / span,
            f"volume_mean_{span}": mean_volume,
            f"volume_ratio_{span}": volume - mean_volume,
            f"volume_deviation_{span}": _deviation(mean_volume, sums["volume_square"][span] / span),
            f"vwap_distance_{span}": close - np.log(average),
        }
    return {name: values[name] for name in observed_names(FeatureSet.ohlcv_225)}


def _static_sources(bars: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    close = np.log(bars["close"])
    values = (close, _change(close, 1) ** 2, np.log(bars["high"]) - np.log(bars["low"]), np.log1p(bars["volume"]))
    return dict(zip(STATIC_225, values, strict=True))


def _deviation(mean: np.ndarray, mean_square: np.ndarray) -> np.ndarray:
    """Standard deviation from two means; a volume that stands still has 0, not the rounding of their difference."""
    variance = mean_square - mean**2
    return np.sqrt(np.where(variance > 1e-13 * mean_square, variance, 0.0))


def _change(values: np.ndarray, span: int) -> np.ndarray:
    """The difference to `span` rows before; the first `span` rows, which have none, are 0 and lie in the warm-up."""
    change = np.zeros_like(values)
    change[span:] = values[span:] - values[:-span]
    return change


def trailing(values: np.ndarray, spans: Sequence[int], combine: np.ufunc = np.add) -> dict[int, np.ndarray]:
    """`combine` over each row and the rows before it, for every span; rows with fewer before them hold less.

    Added lag by lag rather than by a running sum, so that a row's value depends on its own span alone, bit for bit:
    an outlier leaves no trace in later rows, and nothing crosses a segment.
    """
    total, found = values.copy(), {}
    for lag in range(1, max(spans) + 1):
        if lag in spans:
            found[lag] = total.copy()
        total[lag:] = combine(total[lag:], values[:-lag])
    return found


def warm_up_rows(kind: FeatureSet) -> int:
    """Rows at the start of each segment whose derived inputs would reach beyond it."""
    return {FeatureSet.none: 0, FeatureSet.ohlcv: max(SPANS_OHLCV), FeatureSet.ohlcv_225: max(SPANS_225)}[kind]
