"""What a process of the pool does: compose, rehearse, lay out. Importing it pays for torch and what fake tensors need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch._dynamo  # a first fake operation would import it, once in every process

from tft_exp.compose import compose_config
from tft_exp.config import Config, DeviceConfig, DeviceKind, TrackingConfig
from tft_exp.errors import UserError
from tft_exp.planning.layout import lay_out
from tft_exp.planning.plan import Assumed, CardSpeed, Planned
from tft_exp.planning.rehearsal import Rehearsal, rehearse
from tft_exp.planning.shape import DataShape, shape_from_roles
from tft_exp.training.optimizers import require_installed


def plan_group(group: Sequence[dict[str, str]], extra: Sequence[str], assumed: Assumed, speed: CardSpeed) -> list[Planned]:
    """Plans of some combinations; those that rehearse alike, on cards of several sizes, are best given together."""
    torch.set_num_threads(1)
    return [_plan(choices, extra, assumed, speed) for choices in group]


def _plan(choices: dict[str, str], extra: Sequence[str], assumed: Assumed, speed: CardSpeed) -> Planned:
    try:
        config = compose_config([*extra, *(f"{key}={value}" for key, value in choices.items())])
        require_installed(config.optimizer)
        shape = shape_from_roles(config.data, config.features, config.model, assumed)
        return Planned(choices, lay_out(rehearsed(config, shape), config, shape, speed))
    except UserError as error:
        return Planned(choices, None, str(error))
    except Exception as error:  # one combination that torch cannot rehearse does not take the others along
        return Planned(choices, None, f"cannot be rehearsed: {type(error).__name__}: {error}")


# What a rehearsal depends on, as text, is its key; the last one serves the cards of other sizes that come next.
_last: dict[str, Rehearsal] = {}


def rehearsed(config: Config, shape: DataShape) -> Rehearsal:
    """A rehearsal of this configuration, of before where nothing that it depends on is different."""
    device = config.device
    neutral = DeviceConfig(kind=DeviceKind.cpu, cublas_workspace_kib=device.cublas_workspace_kib, lstm_reserve=device.lstm_reserve)
    key = repr((replace(config, seed=0, device=neutral, tracking=TrackingConfig()), device.kind, shape))
    if key not in _last:
        found = rehearse(config, shape)
        _last.clear()
        _last[key] = found
    return _last[key]
