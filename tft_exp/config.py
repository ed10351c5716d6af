"""The schema of conf/: types, ranges and rules between keys. Every value is checked here, before any work."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from tft_exp.errors import ConfigError


class OnBad(Enum):
    error = "error"
    drop = "drop"


class OnDuplicates(Enum):
    error = "error"
    keep_first = "keep_first"
    keep_last = "keep_last"


class Scaling(Enum):
    entity = "entity"
    all = "all"


class FeatureSet(Enum):
    none = "none"
    ohlcv = "ohlcv"
    ohlcv_225 = "ohlcv_225"


class DeviceKind(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"
    xpu = "xpu"
    virtual = "virtual"


class OptimizerKind(Enum):
    adamw = "adamw"
    sgd = "sgd"
    adafactor = "adafactor"
    galore = "galore"
    muon = "muon"


class StateFormat(Enum):
    fp32 = "fp32"
    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"


class Gradients(Enum):
    after_step = "after_step"
    in_backward = "in_backward"


class AuditMode(Enum):
    warn = "warn"
    strict = "strict"


class Schedule(Enum):
    constant = "constant"
    cosine = "cosine"
    linear = "linear"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Residency(Enum):
    keep = "keep"
    clear_cache = "clear_cache"
    clear_cache_every_batch = "clear_cache_every_batch"
    recreate = "recreate"
    offload = "offload"
    offload_always = "offload_always"
    cpu_validation = "cpu_validation"
    stash = "stash"


def _require(holds: bool, key: str, value: object, allowed: str, mend: str = "") -> None:
    if not holds:
        shown = value.value if isinstance(value, Enum) else value
        raise ConfigError(f"{key}={shown!r} is not allowed: {allowed}", where=key, mend=mend)


@dataclass
class BarColumns:
    """Names of the price and volume columns; null where the data has none (the OHLC order is then not checked)."""

    open: str | None = None
    high: str | None = None
    low: str | None = None
    close: str | None = None
    volume: str | None = None


@dataclass
class DataConfig:
    """Where the rows come from, what each column is, what is done about bad rows, and how time is split."""

    path: str = MISSING
    time: str = "timestamp"
    entities: list[str] = field(default_factory=list)
    target: str = MISSING
    static_real: list[str] = field(default_factory=list)
    static_categorical: list[str] = field(default_factory=list)
    known_real: list[str] = field(default_factory=list)
    known_categorical: list[str] = field(default_factory=list)
    observed_real: list[str] = field(default_factory=list)
    observed_categorical: list[str] = field(default_factory=list)
    bars: BarColumns = field(default_factory=BarColumns)
    max_gap: str | None = None
    earliest: str = "1950-01-01"
    latest: str = "2100-01-01"
    on_bad_rows: OnBad = OnBad.error
    on_duplicates: OnDuplicates = OnDuplicates.error
    on_unseen_entity: OnBad = OnBad.error
    on_short_entity: OnBad = OnBad.error
    on_constant_target: OnBad = OnBad.error
    validation_fraction: float = 0.2
    test_fraction: float = 0.0
    scaling: Scaling = Scaling.entity
    season_length: int | None = None

    def __post_init__(self) -> None:
        _require(0.0 < self.validation_fraction < 1.0, "data.validation_fraction", self.validation_fraction, "more than 0, less than 1")
        _require(0.0 <= self.test_fraction < 1.0, "data.test_fraction", self.test_fraction, "from 0 to less than 1")
        _require(
            self.validation_fraction + self.test_fraction < 1.0,
            "data.test_fraction",
            self.test_fraction,
            f"with data.validation_fraction={self.validation_fraction} nothing is left to train on",
        )
        _require(self.season_length is None or self.season_length >= 1, "data.season_length", self.season_length, "null, or 1 bar and more")
        if self.max_gap is not None:
            import pandas as pd

            try:
                positive = pd.Timedelta(self.max_gap) > pd.Timedelta(0)
            except ValueError:
                positive = False
            _require(
                positive,  # NaT is greater than nothing
                "data.max_gap",
                self.max_gap,
                "null, or a positive length of time such as 60s, 5min, 4d",
            )
        for key in ("earliest", "latest"):
            try:
                datetime.date.fromisoformat(getattr(self, key))
            except ValueError:
                _require(False, f"data.{key}", getattr(self, key), "a date written as YYYY-MM-DD")
        _require(self.earliest < self.latest, "data.earliest", self.earliest, f"it must lie before data.latest={self.latest}")
        self._check_roles()

    def _check_roles(self) -> None:
        taken: dict[str, str] = {}
        roles = ["static_real", "static_categorical", "known_real", "known_categorical", "observed_real", "observed_categorical"]
        for role in roles:
            for column in getattr(self, role):
                first = taken.setdefault(column, role)
                _require(
                    first == role, f"data.{role}", column, f"the column already has the role data.{first}", "give each column one role"
                )
                _require(
                    column != self.time,
                    f"data.{role}",
                    column,
                    "it is the time column (data.time); calendar inputs come from the features group",
                )
        for role in ("known_real", "known_categorical", "static_real", "static_categorical"):
            _require(
                self.target not in getattr(self, role),
                f"data.{role}",
                self.target,
                "it is the target, and its future may not be known",
                "leave it out: the target's past is always an observed input",
            )


@dataclass
class FeaturesConfig:
    """Inputs derived from bars."""

    kind: FeatureSet = FeatureSet.none


@dataclass
class ModelConfig:
    """Shape of the Temporal Fusion Transformer."""

    hidden_size: int = 32
    attention_heads: int = 4
    lstm_layers: int = 1
    dropout: float = 0.1
    lookback: int = 60
    horizon: int = 10
    quantiles: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])

    def __post_init__(self) -> None:
        for key, most in (("hidden_size", 8192), ("attention_heads", 256), ("lstm_layers", 16), ("lookback", 100_000), ("horizon", 10_000)):
            _require(1 <= getattr(self, key) <= most, f"model.{key}", getattr(self, key), f"a whole number from 1 to {most}")
        _require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "from 0 to less than 1")
        _require(
            self.hidden_size % self.attention_heads == 0,
            "model.attention_heads",
            self.attention_heads,
            f"it must divide model.hidden_size={self.hidden_size}",
        )
        _require(
            len(self.quantiles) > 0 and all(0.0 < q < 1.0 for q in self.quantiles) and sorted(set(self.quantiles)) == list(self.quantiles),
            "model.quantiles",
            list(self.quantiles),
            "rising numbers between 0 and 1, each once",
        )
        _require(0.5 in self.quantiles, "model.quantiles", list(self.quantiles), "0.5 must be among them: the median is the point forecast")


@dataclass
class BatchConfig:
    """Windows in a training step's batch and in a validation batch, and steps whose gradients are added up."""

    train: int = 64
    validation: int = 256
    accumulate: int = 1

    def __post_init__(self) -> None:
        for key in ("train", "validation", "accumulate"):
            _require(1 <= getattr(self, key) <= 1_000_000, f"batch.{key}", getattr(self, key), "a whole number from 1 to 1000000")


@dataclass
class DeviceConfig:
    """The device; of a capped or virtual card also its size as the job sees it, and what the context takes of it."""

    kind: DeviceKind = DeviceKind.auto
    index: int = 0
    capacity_mib: int | None = None
    context_mib: int = 450
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        if self.kind is DeviceKind.virtual:
            _require(self.capacity_mib is not None, "device.capacity_mib", self.capacity_mib, "a virtual card needs a size")
        _require(
            self.kind is DeviceKind.virtual or not self.expandable_segments,
            "device.expandable_segments",
            self.expandable_segments,
            "only a virtual card reads it",
            "set PYTORCH_ALLOC_CONF=expandable_segments:True for a real one",
        )
        _require(self.index >= 0, "device.index", self.index, "0 or more")
        if self.capacity_mib is not None:
            _require(
                self.kind in (DeviceKind.cuda, DeviceKind.virtual),
                "device.capacity_mib",
                self.capacity_mib,
                f"device.kind={self.kind.value} cannot be capped; only cuda can",
                "set device=cuda_4gb or virtual_4gb, or device.capacity_mib=null",
            )
            _require(
                self.capacity_mib > self.context_mib >= 0,
                "device.capacity_mib",
                self.capacity_mib,
                f"more than device.context_mib={self.context_mib}",
            )


# The constants of each optimizer beside learning rate and weight decay; of others they must stay null.
CONSTANTS = {
    OptimizerKind.adamw: ("beta1", "beta2", "eps", "fused"),
    OptimizerKind.sgd: ("momentum", "fused"),
    OptimizerKind.adafactor: (),
    OptimizerKind.galore: ("beta1", "beta2", "eps", "rank", "update_gap"),
    OptimizerKind.muon: ("momentum", "beta1", "beta2", "eps"),
}


@dataclass
class OptimizerConfig:
    """The optimizer, the format of its state, and its constants. A constant that the chosen optimizer does not have must
    stay null; where it has one that is null, it is the optimizer's own default."""

    kind: OptimizerKind = OptimizerKind.adamw
    state_format: StateFormat = StateFormat.fp32
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    momentum: float | None = None
    fused: bool | None = None
    rank: int | None = None
    update_gap: int | None = None

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "a positive number"
        )
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        for key in sorted({key for keys in CONSTANTS.values() for key in keys}):
            value = getattr(self, key)
            if value is None:
                continue
            readers = [kind.value for kind, keys in CONSTANTS.items() if key in keys]
            _require(
                self.kind.value in readers,
                f"optimizer.{key}",
                value,
                f"optimizer.kind={self.kind.value} has no {key}",
                f"only {', '.join(readers)} read it; set it to null",
            )
            if key in ("beta1", "beta2", "eps", "momentum"):
                _require(0.0 <= value < 1.0, f"optimizer.{key}", value, "from 0 to less than 1")
            elif key != "fused":
                _require(value >= 1, f"optimizer.{key}", value, "1 or more")
        if self.state_format is not StateFormat.fp32:
            _require(
                self.kind is OptimizerKind.adamw,
                "optimizer.state_format",
                self.state_format,
                f"optimizer.kind={self.kind.value} keeps its state in float32",
                "only adamw has other formats",
            )
            _require(
                not self.fused,
                "optimizer.fused",
                self.fused,
                f"AdamW with state_format={self.state_format.value} has no fused form",
                "set it to null",
            )


@dataclass
class PolicyConfig:
    """Where the optimizer's state lies around validation and around a step."""

    residency: Residency = Residency.keep
    rewarmup_steps: int = 0

    def __post_init__(self) -> None:
        _require(self.rewarmup_steps >= 0, "policy.rewarmup_steps", self.rewarmup_steps, "0 or more")
        _require(
            self.rewarmup_steps == 0 or self.residency is Residency.recreate,
            "policy.rewarmup_steps",
            self.rewarmup_steps,
            f"policy.residency={self.residency.value} keeps the moments, so there is nothing to warm up again",
            "set policy=recreate_rewarm, or policy.rewarmup_steps=0",
        )


@dataclass
class GradientsConfig:
    """When a gradient is used and let go: after the whole backward pass, or as soon as it is there."""

    release: Gradients = Gradients.after_step


@dataclass
class TrainerConfig:
    """Epochs, their limits, and how a step is taken."""

    max_epochs: int = 5
    limit_train_batches: int | None = None
    limit_validation_batches: int | None = None
    early_stopping_patience: int | None = None
    gradient_clip_norm: float | None = 1.0
    schedule: Schedule = Schedule.constant
    warmup_steps: int = 0
    precision: Precision = Precision.fp32

    def __post_init__(self) -> None:
        _require(1 <= self.max_epochs <= 100_000, "trainer.max_epochs", self.max_epochs, "a whole number from 1 to 100000")
        for key in ("limit_train_batches", "limit_validation_batches", "early_stopping_patience"):
            value = getattr(self, key)
            _require(value is None or value >= 1, f"trainer.{key}", value, "null (no limit), or 1 and more")
        _require(
            self.gradient_clip_norm is None or self.gradient_clip_norm > 0,
            "trainer.gradient_clip_norm",
            self.gradient_clip_norm,
            "null, or a positive number",
        )
        _require(self.warmup_steps >= 0, "trainer.warmup_steps", self.warmup_steps, "0 or more")


@dataclass
class TrackingConfig:
    """Where MLflow keeps the runs. `uri: null` is a SQLite store in the folder `home`."""

    uri: str | None = None
    home: str = "mlruns"
    experiment: str = "tft-exp"

    def __post_init__(self) -> None:
        _require(bool(self.experiment.strip()), "tracking.experiment", self.experiment, "a name")


@dataclass
class Config:
    """One run."""

    data: DataConfig = field(default_factory=DataConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    gradients: GradientsConfig = field(default_factory=GradientsConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    seed: int = 0
    audit: AuditMode = AuditMode.warn

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 4294967295")
        self._check_combinations()
        self._check_data()

    def _check_combinations(self) -> None:
        """What cannot be done together, however it is built."""
        if self.gradients.release is Gradients.in_backward:
            where, value = "gradients.release", Gradients.in_backward.value
            clip = self.trainer.gradient_clip_norm
            _require(
                clip is None,
                where,
                value,
                f"trainer.gradient_clip_norm={clip} needs all gradients at once, and in_backward lets each go as it comes",
                "set trainer.gradient_clip_norm=null, or gradients=after_step",
            )
            _require(
                self.batch.accumulate == 1,
                where,
                value,
                f"batch.accumulate={self.batch.accumulate} adds gradients up over batches, and in_backward keeps none",
                "set batch.accumulate=1, or gradients=after_step",
            )
        parts: list[tuple[bool, str, Enum]] = [
            (self.gradients.release is Gradients.in_backward, "gradients.release", self.gradients.release),
            (self.policy.residency is Residency.offload_always, "policy.residency", self.policy.residency),
        ]
        for chosen, key, choice in parts:
            _require(
                not (chosen and self.trainer.precision is Precision.fp16),
                key,
                choice,
                "trainer.precision=fp16 scales the loss and must see all gradients before any step",
                "set trainer.precision=bf16 or fp32",
            )
            _require(
                not (chosen and self.optimizer.kind is OptimizerKind.galore),
                key,
                choice,
                "GaLore counts its steps for all parameters at once, and here they step one after another",
                "choose another optimizer",
            )

    def _check_data(self) -> None:
        season = self.data.season_length
        _require(
            season is None or season <= self.model.lookback,
            "data.season_length",
            season,
            f"the season must lie within model.lookback={self.model.lookback}",
        )
        if self.features.kind is not FeatureSet.none:
            for name in ("open", "high", "low", "close", "volume"):
                _require(
                    getattr(self.data.bars, name) is not None,
                    "features.kind",
                    self.features.kind,
                    f"it is computed from bars, and data.bars.{name} is null",
                    f"name the column in data.bars.{name}, or set features=none",
                )
