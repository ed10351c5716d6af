"""Optimizers from a config, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from tft_exp.config import OptimizerConfig, OptimizerKind, Schedule


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """A new optimizer without state. Constants that the config leaves null are torch's own defaults."""
    rate, decay, fused = config.learning_rate, config.weight_decay, config.fused
    if config.kind is OptimizerKind.adamw:
        betas = (0.9 if config.beta1 is None else config.beta1, 0.999 if config.beta2 is None else config.beta2)
        eps = 1e-8 if config.eps is None else config.eps
        return torch.optim.AdamW(parameters, lr=rate, betas=betas, eps=eps, weight_decay=decay, fused=fused)
    if config.kind is OptimizerKind.sgd:
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum or 0.0, weight_decay=decay, fused=fused)
    return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)


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
        group["lr"] = learning_rate
