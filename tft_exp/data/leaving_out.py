"""Entities that nothing can be trained on: each is named, or left out where the config asks for it."""

from __future__ import annotations

import numpy as np

from tft_exp.config import DataConfig, OnBad
from tft_exp.data.panel import Panel, Repair, cut_segments
from tft_exp.data.windows import WindowIndex
from tft_exp.errors import DataError


def _drop_entities(panel: Panel, gone: np.ndarray, max_gap_us: int | None, what: str) -> Panel:
    """The panel without the entities where `gone`, [entities], is true; the others are numbered anew."""
    whose = np.repeat(gone, np.diff(panel.heads))
    kept = panel.take(~whose)
    names = ", ".join(panel.entity_names[code] for code in np.flatnonzero(gone)[:6])
    kept.repairs.append(Repair(f"dropped {int(gone.sum())} entities {what}", panel.rows - kept.rows, names))
    kept.entity_names = [name for name, out in zip(panel.entity_names, gone, strict=True) if not out]
    number = (np.cumsum(~gone) - 1).astype(np.int32)
    for block in kept.blocks():
        kept.entity[block] = number[kept.entity[block]]
    return cut_segments(kept, max_gap_us)


def without_short_entities(panel: Panel, data: DataConfig, warm_up: int, length: int) -> Panel:
    """Without entities whose longest segment has fewer than `warm_up` + `length` rows. Raises DataError."""
    longest = np.zeros(len(panel.entity_names), dtype=np.int64)
    np.maximum.at(longest, panel.entity_of(panel.starts), panel.ends - panel.starts)
    short = longest < warm_up + length
    if not short.any():
        return panel
    what = f"too short for one window of {length} rows after {warm_up} warm-up rows"
    if data.on_short_entity is OnBad.error or short.all():
        listed = ", ".join(f"{panel.entity_names[code] or 'the series'} {longest[code]} rows" for code in np.flatnonzero(short)[:6])
        mend = "shorten model.lookback or model.horizon, or raise data.max_gap"
        raise DataError(
            f"{int(short.sum())} of {len(short)} entities are {what}",
            where=f"{data.path}: longest runs without a gap: {listed}",
            mend=mend if short.all() else f"{mend}, or leave these entities out with data.on_short_entity=drop",
        )
    return _drop_entities(panel, short, data.max_gap_us, what)


def without_unseen_entities(panel: Panel, index: WindowIndex, data: DataConfig) -> Panel:
    """Without entities that have no training window. Raises DataError."""
    unseen = np.ones(len(panel.entity_names), dtype=bool)
    unseen[panel.entity_of(index.by_split["train"].firsts)] = False
    if not unseen.any():
        return panel
    if data.on_unseen_entity is OnBad.error:
        names = ", ".join(panel.entity_names[code] for code in np.flatnonzero(unseen)[:6])
        raise DataError(
            f"{int(unseen.sum())} entities have no training window, so that training never sees them: {names}",
            where=data.path,
            mend="lower data.validation_fraction, or leave these entities out with data.on_unseen_entity=drop",
        )
    return _drop_entities(panel, unseen, data.max_gap_us, "without a training window")


def without_constant_targets(panel: Panel, constant: np.ndarray, data: DataConfig) -> Panel:
    """Without the entities where `constant`, [entities], is true. Raises DataError."""
    if data.on_constant_target is OnBad.error or constant.all():
        names = ", ".join(panel.entity_names[code] for code in np.flatnonzero(constant)[:6])
        whose = f" of {int(constant.sum())} entities ({names})" if names else ""
        drop = "" if constant.all() else ", or leave these entities out with data.on_constant_target=drop"
        raise DataError(
            f"the target {data.target}{whose} is constant in the training rows",
            where=f"{data.path}, {data.target}",
            mend=f"choose another data.target{drop}",
        )
    return _drop_entities(panel, constant, data.max_gap_us, "with a constant target in the training rows")
