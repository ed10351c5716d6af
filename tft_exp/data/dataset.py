"""From a data config to tensors and windows: what the trainer and `tft-exp check` both load."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from tft_exp.config import DataConfig, FeaturesConfig, FeatureSet, OnBad
from tft_exp.data.features import observed_names, warm_up_rows
from tft_exp.data.inputs import BuiltInputs, Roles, build_inputs
from tft_exp.data.panel import Panel, Repair, cut_segments, moment
from tft_exp.data.reading import read_panel
from tft_exp.data.report import DataReport, step_and_gaps
from tft_exp.data.rows import WindowedRows
from tft_exp.data.runs import stretches_of
from tft_exp.data.windows import SPLITS, Cuts, WindowIndex, choose_cuts, index_windows
from tft_exp.errors import ConfigError, DataError
from tft_exp.model.inputs import InputSizes


@dataclass(frozen=True)
class Dataset:
    """Rows and windows as tensors, and what is known of where they came from."""

    rows: WindowedRows
    sizes: InputSizes
    roles: Roles
    report: DataReport
    preprocessing: dict[str, Any]
    fingerprint: str
    source_fingerprint: str
    entity_names: list[str]  # of one series without an entity column the empty name
    cuts: Cuts
    training_rows: Tensor  # bool [rows], on the CPU: after the warm-up and before validation; what statistics are taken from

    @property
    def static_names(self) -> list[str]:
        """Static variables in the order of the model's static selection: reals, then categoricals."""
        return self.roles.static

    @property
    def past_names(self) -> list[str]:
        """Variables of the lookback: known reals and categoricals, then observed reals and categoricals."""
        return self.roles.known + self.roles.observed

    @property
    def future_names(self) -> list[str]:
        """Variables of the horizon: known reals, then categoricals."""
        return self.roles.known


def load_dataset(data: DataConfig, features: FeaturesConfig, *, lookback: int, horizon: int) -> Dataset:
    """Read, check, derive, scale and index. Raises DataError; repairs only what the config asks for."""
    _refuse_known_bars(data, features.kind)
    warm_up = warm_up_rows(features.kind)
    panel = read_panel(data, observed_names(features.kind))
    panel = _without_short_entities(panel, data, warm_up, lookback + horizon)
    cuts = choose_cuts(panel.time_us, data.validation_fraction, data.test_fraction)

    def indexed(of: Panel) -> WindowIndex:
        return index_windows(of, cuts, warm_up=warm_up, lookback=lookback, horizon=horizon)

    def training_rows(of: Panel) -> np.ndarray:
        rows: np.ndarray = (of.time_us < cuts.validation_us) & (of.position >= warm_up)
        return rows

    def built(of: Panel) -> BuiltInputs:
        return build_inputs(of, data, features.kind, training=training_rows(of))

    index = indexed(panel)
    _require_windows(panel, index, data, warm_up, lookback, horizon)
    panel = _without_unseen_entities(panel, index, data)
    inputs = built(panel)
    if inputs.constant_target.any():
        panel = _without_constant_targets(panel, inputs.constant_target, data)
        inputs = built(panel)
    index = indexed(panel)
    _require_windows(panel, index, data, warm_up, lookback, horizon)
    return Dataset(
        rows=WindowedRows(
            lookback=lookback,
            horizon=horizon,
            windows={split: torch.from_numpy(index.by_split[split]) for split in SPLITS},
            stretches={split: stretches_of(index.by_split[split]) for split in SPLITS},
            tensors=inputs.tensors,
        ),
        sizes=inputs.sizes,
        roles=inputs.roles,
        report=_report(panel, data, cuts, index, inputs, warm_up),
        preprocessing=inputs.preprocessing
        | {"features": features.kind.value, "lookback": lookback, "horizon": horizon, "cuts": asdict(cuts)},
        fingerprint=_fingerprint(panel.source.fingerprint, data, features.kind),
        source_fingerprint=panel.source.fingerprint,
        entity_names=panel.entity_names,
        cuts=cuts,
        training_rows=torch.from_numpy(training_rows(panel)),
    )


def _refuse_known_bars(data: DataConfig, kind: FeatureSet) -> None:
    """The future of a derived target could be computed from the future of the bars."""
    bars = [column for column in vars(data.bars).values() if column in data.known_real]
    if bars and data.target in observed_names(kind):
        raise ConfigError(
            f"data.known_real names {bars[0]}, from whose future that of the target {data.target} can be computed",
            where="data.known_real",
            mend=f"leave {bars[0]} out, or give it as data.observed_real",
        )


def _require_windows(panel: Panel, index: WindowIndex, data: DataConfig, warm_up: int, lookback: int, horizon: int) -> None:
    for split in SPLITS[: 3 if data.test_fraction > 0 else 2]:
        if not len(index.by_split[split]):
            raise DataError(
                f"there is no {split} window: one takes {lookback} + {horizon} rows after {warm_up} warm-up rows, without a gap, "
                "and all its targets in one split",
                where=f"{data.path}: the longest run without a gap has {int(panel.position.max()) + 1} rows",
                mend="shorten model.lookback or model.horizon, or change data.max_gap, data.validation_fraction or data.test_fraction",
            )


def _drop_entities(panel: Panel, gone: np.ndarray, max_gap_us: int | None, what: str) -> Panel:
    """The panel without the entities where `gone`, [entities], is true; the others are numbered anew."""
    kept = panel.take(~gone[panel.entity])
    names = ", ".join(panel.entity_names[code] for code in np.flatnonzero(gone)[:6])
    kept.repairs.append(Repair(f"dropped {int(gone.sum())} entities {what}", panel.rows - kept.rows, names))
    kept.entity_names = [name for name, out in zip(panel.entity_names, gone, strict=True) if not out]
    kept.entity = (np.cumsum(~gone) - 1)[kept.entity].astype(np.int32)
    return cut_segments(kept, max_gap_us)


def _without_short_entities(panel: Panel, data: DataConfig, warm_up: int, length: int) -> Panel:
    heads = np.flatnonzero(np.append(True, panel.entity[1:] != panel.entity[:-1]))
    longest = np.zeros(len(panel.entity_names), dtype=np.int64)
    longest[panel.entity[heads]] = np.maximum.reduceat(panel.position, heads) + 1
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


def _without_unseen_entities(panel: Panel, index: WindowIndex, data: DataConfig) -> Panel:
    unseen = np.bincount(index.by_split["train"][:, 0], minlength=len(panel.entity_names)) == 0
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


def _without_constant_targets(panel: Panel, constant: np.ndarray, data: DataConfig) -> Panel:
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


def _report(panel: Panel, data: DataConfig, cuts: Cuts, index: WindowIndex, inputs: BuiltInputs, warm_up: int) -> DataReport:
    step, gaps = step_and_gaps(panel)
    starts = {"validation": moment(cuts.validation_us)}
    if data.test_fraction > 0:
        starts["test"] = moment(cuts.test_us)
    return DataReport(
        path=data.path,
        files=len(panel.source.files),
        rows_read=panel.rows_read,
        rows_used=panel.rows,
        entity_names=panel.entity_names if data.entities else ["one series"],
        first=moment(panel.time_us.min()),
        last=moment(panel.time_us.max()),
        median_step=step,
        segments=int(panel.segment[-1]) + 1,
        longest_gaps=gaps,
        inputs={"static": inputs.roles.static, "known": inputs.roles.known, "observed": inputs.roles.observed},
        target=data.target,
        cuts=starts,
        windows={split: len(index.by_split[split]) for split in (*SPLITS[:2], *(["test"] if data.test_fraction > 0 else []))},
        straddling=index.straddling,
        warm_up_rows=int((panel.position < warm_up).sum()),
        constants=inputs.constants,
        repairs=panel.repairs,
        warnings=panel.warnings + inputs.warnings,
    )


def _fingerprint(files: str, data: DataConfig, kind: FeatureSet) -> str:
    """16 hex digits over the files' bytes and all that decides what is made of them; where they lie does not count."""
    settings = OmegaConf.to_yaml(OmegaConf.structured(replace(data, path="")))
    return hashlib.sha256(json.dumps([files, settings, kind.value]).encode()).hexdigest()[:16]
