"""The schema of conf/: types, ranges and rules between keys. Every value is checked here, before any work."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tft_exp.config.checks import require
from tft_exp.config.data import BarColumns, DataConfig, FeaturesConfig, FeatureSet, OnBad, OnDuplicates, Scaling
from tft_exp.config.optimization import Gradients, GradientsConfig, OptimizerConfig, OptimizerKind, PolicyConfig, Residency, StateFormat
from tft_exp.config.sweep import OnFailure, SweepConfig
from tft_exp.config.training import (
    Activations,
    BatchConfig,
    Compile,
    DeviceConfig,
    DeviceKind,
    ModelConfig,
    Precision,
    Schedule,
    TrackingConfig,
    TrainerConfig,
)

__all__ = [
    "Activations",
    "AuditMode",
    "BarColumns",
    "BatchConfig",
    "Compile",
    "Config",
    "DataConfig",
    "DeviceConfig",
    "DeviceKind",
    "FeatureSet",
    "FeaturesConfig",
    "Gradients",
    "GradientsConfig",
    "ModelConfig",
    "OnBad",
    "OnDuplicates",
    "OnFailure",
    "OptimizerConfig",
    "OptimizerKind",
    "PolicyConfig",
    "Precision",
    "Residency",
    "Scaling",
    "Schedule",
    "StateFormat",
    "SweepConfig",
    "TrackingConfig",
    "TrainerConfig",
]


class AuditMode(Enum):
    warn = "warn"
    strict = "strict"


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
    sweep: SweepConfig = field(default_factory=SweepConfig)
    seed: int = 0
    audit: AuditMode = AuditMode.warn

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 4294967295")
        self._check_combinations()
        self._check_data()

    def _check_combinations(self) -> None:
        """What cannot be done together, however it is built."""
        if self.gradients.release is Gradients.in_backward:
            where, value = "gradients.release", Gradients.in_backward.value
            clip = self.trainer.gradient_clip_norm
            require(
                clip is None,
                where,
                value,
                f"trainer.gradient_clip_norm={clip} needs all gradients at once, and in_backward lets each go as it comes",
                "set trainer.gradient_clip_norm=null, or gradients=after_step",
            )
            require(
                self.batch.accumulate == 1,
                where,
                value,
                f"batch.accumulate={self.batch.accumulate} adds gradients up over batches, and in_backward keeps none",
                "set batch.accumulate=1, or gradients=after_step",
            )
            require(
                not self.batch.auto,
                where,
                value,
                "batch.auto may have to add gradients up over batches, and in_backward keeps none",
                "choose a batch of fixed size, or gradients=after_step",
            )
        require(
            self.model.compile is Compile.none or self.device.kind is not DeviceKind.virtual,
            "model.compile",
            self.model.compile,
            "a virtual card follows every operation, and compiled ones are not seen",
            "set model.compile=none, or a real device",
        )
        parts: list[tuple[bool, str, Enum]] = [
            (self.gradients.release is Gradients.in_backward, "gradients.release", self.gradients.release),
            (self.policy.residency is Residency.offload_always, "policy.residency", self.policy.residency),
        ]
        for chosen, key, choice in parts:
            require(
                not (chosen and self.trainer.precision is Precision.fp16),
                key,
                choice,
                "trainer.precision=fp16 scales the loss and must see all gradients before any step",
                "set trainer.precision=bf16 or fp32",
            )
            require(
                not (chosen and self.optimizer.kind is OptimizerKind.galore),
                key,
                choice,
                "GaLore counts its steps for all parameters at once, and here they step one after another",
                "choose another optimizer",
            )

    def _check_data(self) -> None:
        season = self.data.season_length
        require(
            season is None or season <= self.model.lookback,
            "data.season_length",
            season,
            f"the season must lie within model.lookback={self.model.lookback}",
        )
        if self.features.kind is not FeatureSet.none:
            for name in ("open", "high", "low", "close", "volume"):
                require(
                    getattr(self.data.bars, name) is not None,
                    "features.kind",
                    self.features.kind,
                    f"it is computed from bars, and data.bars.{name} is null",
                    f"name the column in data.bars.{name}, or set features=none",
                )
