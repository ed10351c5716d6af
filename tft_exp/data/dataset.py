"""From a data config to tensors and windows: what the trainer and `tft-exp check` both load."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tft_exp.config import DataConfig, FeaturesConfig, FeatureSet
from tft_exp.data.arrays import Arrays
from tft_exp.data.cache import Entry, Kept, files_state
from tft_exp.data.features import observed_names, warm_up_rows
from tft_exp.data.inputs import BuiltInputs, Roles, build_inputs
from tft_exp.data.leaving_out import without_constant_targets, without_short_entities, without_unseen_entities
from tft_exp.data.packing import packed_rows, unpacked_rows
from tft_exp.data.panel import Panel, Repair, moment
from tft_exp.data.reading import read_panel
from tft_exp.data.report import DataReport, step_and_gaps
from tft_exp.data.rows import WindowedRows
from tft_exp.data.source import find_files, fingerprint
from tft_exp.data.training_rows import TrainingRows
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
    """Read, check, derive, scale and index, or map what an earlier start has kept of that (data.cache). Raises DataError; repairs only
    what the config asks for."""
    _refuse_known_bars(data, features.kind)

    def make(arrays: Arrays) -> Dataset:
        return build_dataset(data, features, arrays, lookback=lookback, horizon=horizon)

    entry = _entry(data, features, lookback, horizon)
    if entry is None:
        return make(Arrays())
    return _unpacked(entry.obtain(lambda arrays: _packed(make(arrays))))


def _entry(data: DataConfig, features: FeaturesConfig, lookback: int, horizon: int) -> Entry | None:
    """Where the data is kept; None where it is small, or may not be kept."""
    if data.cache is None:
        return None
    files = find_files(data.path)
    try:
        if sum(file.stat().st_size for file in files) < data.cache_from_mib * 2**20:
            return None
        state = {"the data's files": files_state(files), "the program": _program()}
    except OSError:
        return None  # who reads the file says what is wrong with it
    settings = [data.path, _settings(data), features.kind.value, lookback, horizon]
    return Entry(Path(data.cache).expanduser() / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16], state)


def _program() -> str:
    """16 hex digits over all code that decides what is made of data."""
    code = hashlib.sha256(f"{np.__version__} {pa.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def build_dataset(data: DataConfig, features: FeaturesConfig, arrays: Arrays, *, lookback: int, horizon: int) -> Dataset:
    """The data set made of the files, its rows in `arrays`. Raises DataError."""
    # Hashing needs no lock of Python's: it goes on beside the reading.
    with ThreadPoolExecutor(1) as beside:
        hashing = beside.submit(lambda: fingerprint(find_files(data.path)))
        return _build(data, features, arrays, hashing, lookback, horizon)


def _build(data: DataConfig, features: FeaturesConfig, arrays: Arrays, hashing: Future[str], lookback: int, horizon: int) -> Dataset:
    warm_up = warm_up_rows(features.kind)
    panel = read_panel(data, observed_names(features.kind), arrays)
    panel = without_short_entities(panel, data, warm_up, lookback + horizon)
    times = (panel.time_us[block] for block in panel.blocks())
    cuts = choose_cuts(times, data.validation_fraction, data.test_fraction)

    def indexed(of: Panel) -> WindowIndex:
        return index_windows(of, cuts, warm_up=warm_up, lookback=lookback, horizon=horizon)

    def built(of: Panel) -> BuiltInputs:
        return build_inputs(of, data, features.kind, TrainingRows(of, cuts, warm_up))

    index = indexed(panel)
    _require_windows(panel, index, data, warm_up, lookback, horizon)
    panel = without_unseen_entities(panel, index, data)
    inputs = built(panel)
    if inputs.constant_target.any():
        panel = without_constant_targets(panel, inputs.constant_target, data)
        inputs = built(panel)
    index = indexed(panel)
    _require_windows(panel, index, data, warm_up, lookback, horizon)
    source_fingerprint = hashing.result()
    return Dataset(
        rows=WindowedRows(
            lookback=lookback,
            horizon=horizon,
            windows={split: torch.from_numpy(index.by_split[split].rows(arrays, f"windows_{split}")) for split in SPLITS},
            stretches={split: index.by_split[split].counts for split in SPLITS},
            tensors=inputs.tensors,
        ),
        sizes=inputs.sizes,
        roles=inputs.roles,
        report=_report(panel, data, cuts, index, inputs, warm_up),
        preprocessing=inputs.preprocessing
        | {"features": features.kind.value, "lookback": lookback, "horizon": horizon, "cuts": asdict(cuts)},
        fingerprint=_fingerprint(source_fingerprint, data, features.kind),
        source_fingerprint=source_fingerprint,
        entity_names=panel.entity_names,
        cuts=cuts,
        training_rows=torch.from_numpy(TrainingRows(panel, cuts, warm_up).mask("training_rows")),
    )


def _packed(dataset: Dataset) -> Kept:
    plain = ("preprocessing", "fingerprint", "source_fingerprint", "entity_names")
    nested = ("sizes", "roles", "report", "cuts")
    about = {name: getattr(dataset, name) for name in plain} | {name: asdict(getattr(dataset, name)) for name in nested}
    about |= {"lookback": dataset.rows.lookback, "horizon": dataset.rows.horizon}
    return Kept(packed_rows(dataset.rows) | {"training_rows": dataset.training_rows.numpy()}, about, dataset.rows.release)


def _unpacked(kept: Kept) -> Dataset:
    about = kept.about
    sizes: dict[str, Any] = {name: tuple(size) if isinstance(size, list) else size for name, size in about["sizes"].items()}
    repairs = [Repair(**repair) for repair in about["report"]["repairs"]]
    return Dataset(
        rows=unpacked_rows(kept.arrays, about["lookback"], about["horizon"], kept.release),
        sizes=InputSizes(**sizes),
        roles=Roles(**about["roles"]),
        report=DataReport(**about["report"] | {"repairs": repairs}),
        preprocessing=about["preprocessing"],
        fingerprint=about["fingerprint"],
        source_fingerprint=about["source_fingerprint"],
        entity_names=about["entity_names"],
        cuts=Cuts(**about["cuts"]),
        training_rows=torch.from_numpy(kept.arrays["training_rows"]),
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
                where=f"{data.path}: the longest run without a gap has {int((panel.ends - panel.starts).max())} rows",
                mend="shorten model.lookback or model.horizon, or change data.max_gap, data.validation_fraction or data.test_fraction",
            )


def _report(panel: Panel, data: DataConfig, cuts: Cuts, index: WindowIndex, inputs: BuiltInputs, warm_up: int) -> DataReport:
    step, gaps = step_and_gaps(panel)
    starts = {"validation": moment(cuts.validation_us)}
    if data.test_fraction > 0:
        starts["test"] = moment(cuts.test_us)
    return DataReport(
        path=data.path,
        files=len(panel.files.paths),
        rows_read=panel.files.rows,
        rows_used=panel.rows,
        entity_names=panel.entity_names if data.entities else ["one series"],
        first=moment(panel.time_us[panel.heads[:-1]].min()),
        last=moment(panel.time_us[panel.heads[1:] - 1].max()),
        median_step=step,
        segments=len(panel.starts),
        longest_gaps=gaps,
        inputs={"static": inputs.roles.static, "known": inputs.roles.known, "observed": inputs.roles.observed},
        target=data.target,
        cuts=starts,
        windows={split: len(index.by_split[split]) for split in (*SPLITS[:2], *(["test"] if data.test_fraction > 0 else []))},
        straddling=index.straddling,
        warm_up_rows=int(np.minimum(panel.ends - panel.starts, warm_up).sum()),
        constants=inputs.constants,
        repairs=panel.repairs,
        warnings=panel.warnings + inputs.warnings,
    )


def _fingerprint(files: str, data: DataConfig, kind: FeatureSet) -> str:
    """16 hex digits over the files' bytes and all that decides what is made of them; where they lie does not count."""
    return hashlib.sha256(json.dumps([files, _settings(data), kind.value]).encode()).hexdigest()[:16]


def _settings(data: DataConfig) -> dict[str, Any]:
    """All that decides what is made of the rows, plain."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(data.placeless), default=lambda option: option.value))
    return plain
