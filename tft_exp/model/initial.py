"""First weights: what a network's layers begin with decides how soon it learns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tft_exp.model.blocks import GateAddNorm, GatedResidualNetwork, InterpretableAttention, PerVariableGRN


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Draw the first weights of all networks, gates, attention and LSTMs in `model`; embeddings and the head keep torch's.

    Layers before an ELU, and those after it, as He et al. 2015 (arXiv 1502.01852, eq. 10) have them, gates and attention as Glorot and
    Bengio 2010 (eq. 16), all without a bias. LSTMs: input maps as Glorot, recurrent ones orthogonal (Saxe et al. 2013, arXiv
    1312.6120), and a forget gate that begins open (Jozefowicz et al. 2015).
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
        elif isinstance(module, nn.LSTM):
            _recurrent(module)


def _glorot(weight: Tensor) -> None:
    """Of one map, or of one for each variable, [..., in, out] or the other way round."""
    bound = math.sqrt(6.0 / sum(weight.shape[-2:]))
    weight.uniform_(-bound, bound)


def _recurrent(lstm: nn.LSTM) -> None:
    forget = slice(lstm.hidden_size, 2 * lstm.hidden_size)  # torch's order: input, forget, cell, output
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_ih"):
            _glorot(parameter)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(parameter)
        else:
            parameter.zero_()
            if name.startswith("bias_ih"):
                parameter[forget] = 1.0
