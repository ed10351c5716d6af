"""First weights: what a network's layers begin with decides how soon it learns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tft_exp.model.blocks import GateAddNorm, GatedResidualNetwork, InterpretableAttention, PerVariableGRN


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Draw the first weights of all networks, gates and attention in `model`; embeddings, LSTMs and the head keep torch's.

    Layers before an ELU, and those after it, as He et al. 2015 (arXiv 1502.01852, eq. 10) have them, gates and attention as Glorot and
    Bengio 2010 (eq. 16), all without a bias.
    """
    for module in model.modules():
        if isinstance(module, GatedResidualNetwork | PerVariableGRN):
            for layer in (module.first, module.second):
                fan_in = layer.weight.shape[-2] if isinstance(module, PerVariableGRN) else layer.weight.shape[-1]
                layer.weight.normal_(0.0, math.sqrt(2.0 / fan_in))
                layer.bias.zero_()
        if isinstance(module, PerVariableGRN):
            _glorot(module.gate.weight)
            module.gate.bias.zero_()
        elif isinstance(module, GateAddNorm):
            _glorot(module.linear.weight)
            module.linear.bias.zero_()
        elif isinstance(module, InterpretableAttention):
            for layer in (module.query, module.key, module.value, module.output):
                _glorot(layer.weight)
            module.query.bias.zero_()
            module.value.bias.zero_()


def _glorot(weight: Tensor) -> None:
    """Of one map, or of one for each variable, [..., in, out] or the other way round."""
    bound = math.sqrt(6.0 / sum(weight.shape[-2:]))
    weight.uniform_(-bound, bound)
