"""Optimizers from a config, and the learning rate as a function of the step."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tft_exp.config import OptimizerConfig, OptimizerKind, Schedule, StateFormat
from tft_exp.errors import ConfigError
from tft_exp.training.lean_optimizers import BFloat16AdamW, Muon

# Kinds and formats that an extra brings: what is imported, and the extra.
EXTRAS = {
    OptimizerKind.galore: ("pytorch_optimizer", "lowrank"),
    StateFormat.int8: ("torchao", "lowbit"),
    StateFormat.int4: ("torchao", "lowbit"),
}


def require_installed(config: OptimizerConfig) -> None:
    """Raises ConfigError where the optimizer needs a package that is not there."""
    for key, choice in (("optimizer.kind", config.kind), ("optimizer.state_format", config.state_format)):
        package, extra = EXTRAS.get(choice, (None, None))
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{key}={choice.value} needs the package {package}, which is not installed",
                where=key,
                mend=f"pip install 'tft-exp[{extra}]'",
            )


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """A new optimizer without state. Constants that the config leaves null are torch's own defaults."""
    parameters = list(model.parameters())
    rate, decay = config.learning_rate, config.weight_decay
    if config.kind is OptimizerKind.sgd:
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum or 0.0, weight_decay=decay, fused=config.fused)
    if config.kind is OptimizerKind.adafactor:
        return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)
    adam: dict[str, Any] = {
        "lr": rate,
        "betas": (_or(config.beta1, 0.9), _or(config.beta2, 0.999)),
        "eps": _or(config.eps, 1e-8),
        "weight_decay": decay,
    }
    if config.kind is OptimizerKind.muon:
        matrices, others = split_parameters(model, smaller_side=2)
        groups = [{"params": matrices, "orthogonal": True}, {"params": others}]
        return Muon(groups, momentum=_or(config.momentum, 0.95), **adam)
    if config.kind is OptimizerKind.galore:
        from tft_exp.training.galore import StackedGaLore

        rank = config.rank or 128
        matrices, others = split_parameters(model, smaller_side=rank + 1)
        if not matrices:
            raise ConfigError(
                f"optimizer.rank={rank} is not allowed: no matrix of this model is larger, so that nothing would be projected",
                where="optimizer.rank",
                mend="choose a rank below model.hidden_size, or another optimizer",
            )
        projected = {"params": matrices, "rank": rank, "update_proj_gap": config.update_gap or 200, "scale": 0.25, "projection_type": "std"}
        galore: Optimizer = StackedGaLore([projected, {"params": others}], **adam)
        return galore
    if config.state_format is StateFormat.bf16:
        return BFloat16AdamW(parameters, **adam)
    if config.state_format in (StateFormat.int8, StateFormat.int4):
        from tft_exp.training import lowbit

        bits = 8 if config.state_format is StateFormat.int8 else 4
        chosen: dict[int, Any] = lowbit.EAGER if parameters[0].device.type == "cpu" else lowbit.COMPILED
        low: Optimizer = chosen[bits](parameters, **adam)
        return low
    return torch.optim.AdamW(parameters, fused=config.fused, **adam)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def split_parameters(model: nn.Module, smaller_side: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices (also stacked ones) of at least so many rows and columns, and the rest: vectors, and the tables of embeddings,
    whose rows are vectors."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_matrix = parameter.dim() >= 2 and min(parameter.shape[-2:]) >= smaller_side and id(parameter) not in tables
        (matrices if is_matrix else others).append(parameter)
    return matrices, others


def learning_rate_at(step: int, *, base: float, schedule: Schedule, warmup_steps: int, total_steps: int) -> float:
    """The learning rate of the optimizer step number `step` (from 0) of `total_steps`.

    A function rather than a torch scheduler: a scheduler holds its optimizer, so that a dropped optimizer would stay
    in memory, and after a rebuild it would drive the old one. Warm-up rises linearly to `base`; then cosine or linear
    decay reaches 0 just after the last step.
    """
    if step < warmup_steps:
        return base * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if schedule is Schedule.cosine:
        return base * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule is Schedule.linear:
        return base * (1.0 - progress)
    return base


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        # torchao keeps it as a tensor, so that its compiled step need not be compiled again.
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
