"""The schema of the optimizer, policy and gradients groups: the three choices that decide a run's memory beside the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from tft_exp.config.checks import require


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


class Residency(Enum):
    keep = "keep"
    clear_cache = "clear_cache"
    clear_cache_every_batch = "clear_cache_every_batch"
    recreate = "recreate"
    offload = "offload"
    offload_always = "offload_always"
    cpu_validation = "cpu_validation"
    stash = "stash"


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
        require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "a positive number"
        )
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        for key in sorted({key for keys in CONSTANTS.values() for key in keys}):
            value = getattr(self, key)
            if value is None:
                continue
            readers = [kind.value for kind, keys in CONSTANTS.items() if key in keys]
            require(
                self.kind.value in readers,
                f"optimizer.{key}",
                value,
                f"optimizer.kind={self.kind.value} has no {key}",
                f"only {', '.join(readers)} read it; set it to null",
            )
            if key in ("beta1", "beta2", "eps", "momentum"):
                require(0.0 <= value < 1.0, f"optimizer.{key}", value, "from 0 to less than 1")
            elif key != "fused":
                require(value >= 1, f"optimizer.{key}", value, "1 or more")
        if self.state_format is not StateFormat.fp32:
            require(
                self.kind is OptimizerKind.adamw,
                "optimizer.state_format",
                self.state_format,
                f"optimizer.kind={self.kind.value} keeps its state in float32",
                "only adamw has other formats",
            )
            require(
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
        require(self.rewarmup_steps >= 0, "policy.rewarmup_steps", self.rewarmup_steps, "0 or more")
        require(
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
