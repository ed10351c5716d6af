"""First weights: their spread, and that signals keep their size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tft_exp.model.blocks import GatedResidualNetwork, PerVariableGRN
from tft_exp.model.initial import initialize


@pytest.mark.parametrize("network", [GatedResidualNetwork(64, 64, 64, 0.0), PerVariableGRN(9, 64, 0.0)])
def test_layers_are_drawn_by_their_fan_in_and_begin_without_a_bias(network: nn.Module) -> None:
    torch.manual_seed(0)
    initialize(network)
    maps = {name: tensor.detach() for name, tensor in network.named_parameters() if tensor.dim() > 1 and tensor.shape[-2] > 1}
    spreads = {name: float(tensor.std()) for name, tensor in maps.items()}
    he, glorot = math.sqrt(2 / 64), math.sqrt(2 / (64 + 128))
    for name, spread in spreads.items():
        assert spread == pytest.approx(he if name.startswith(("first", "second")) else glorot, rel=0.05), name
    assert len(spreads) == 3
    for name, tensor in network.named_parameters():
        if name.endswith("bias") and "norm" not in name:
            assert not tensor.any(), name
