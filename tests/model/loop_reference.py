"""The Temporal Fusion Transformer written from the paper's equations, one variable, head and position at a time.

Slow and plain: it takes its weights from the batched model by name, and is what that model must equal.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tft_exp.model.blocks import GateAddNorm, GatedResidualNetwork, VariableEmbedding, VariableSelection
from tft_exp.model.inputs import Inputs
from tft_exp.model.tft import TemporalFusionTransformer


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ layer.weight.T + (layer.bias if layer.bias is not None else 0.0)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean()
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean() + 1e-5) * weight + bias


def glu(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return x[:half] * torch.sigmoid(x[half:])


def gate_add_norm(block: GateAddNorm, hidden: Tensor, residual: Tensor) -> Tensor:
    return layer_norm(residual + glu(linear(hidden, block.linear)), block.norm.weight, block.norm.bias)


def grn(block: GatedResidualNetwork, a: Tensor, context: Tensor | None) -> Tensor:
    hidden = linear(a, block.first)
    if block.context is not None and context is not None:
        hidden = hidden + linear(context, block.context)
    hidden = linear(F.elu(hidden), block.second)
    return gate_add_norm(block.gate, hidden, a if block.skip is None else linear(a, block.skip))


def embed(block: VariableEmbedding, reals: Tensor, codes: Tensor) -> list[Tensor]:
    """One vector a variable, for one row."""
    vectors = [reals[i] * block.weight[i, 0] + block.bias[i, 0] for i in range(block.reals)]
    return vectors + [block.table.weight[int(codes[i]) + int(block.offsets[i])] for i in range(block.categoricals)]


def select(block: VariableSelection, vectors: list[Tensor], context: Tensor | None) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(grn(block.weights, torch.cat(vectors), context), dim=0)
    total = torch.zeros_like(vectors[0])
    v = block.variables
    for i, vector in enumerate(vectors):
        hidden = F.elu(vector @ v.first.weight[i] + v.first.bias[i, 0])
        hidden = hidden @ v.second.weight[i] + v.second.bias[i, 0]
        gated = glu(hidden @ v.gate.weight[i] + v.gate.bias[i, 0])
        total = total + weights[i] * layer_norm(vector + gated, v.norm_weight[i, 0], v.norm_bias[i, 0])
    return total, weights


def lstm(layer: nn.LSTM, steps: list[Tensor], states: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Plain LSTM; `states` is changed in place to the last ones."""
    for number in range(layer.num_layers):
        w_in, w_hidden = getattr(layer, f"weight_ih_l{number}"), getattr(layer, f"weight_hh_l{number}")
        bias = getattr(layer, f"bias_ih_l{number}") + getattr(layer, f"bias_hh_l{number}")
        hidden, cell = states[number]
        out = []
        for x in steps:
            i, f, g, o = (w_in @ x + w_hidden @ hidden + bias).chunk(4)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            out.append(hidden)
        states[number] = (hidden, cell)
        steps = out
    return steps


def attend(model: TemporalFusionTransformer, rows: list[Tensor], step: int) -> tuple[Tensor, Tensor]:
    """Interpretable multi-head attention of the decoder row `step`; returns the output and the mean attention."""
    block, position = model.attention, model.lookback + step
    size = block.head_size
    query = linear(rows[position], block.query)
    keys = [linear(row, block.key) for row in rows]
    values = [linear(row, block.value) for row in rows]
    heads, mean = [], torch.zeros(len(rows), dtype=query.dtype)
    for head in range(block.heads):
        part = slice(head * size, (head + 1) * size)
        scores = torch.stack([query[part] @ keys[other][part] / math.sqrt(size) for other in range(position + 1)])
        attention = torch.cat([torch.softmax(scores, dim=0), torch.zeros(len(rows) - position - 1, dtype=query.dtype)])
        heads.append(sum(a * v for a, v in zip(attention, values, strict=True)))
        mean = mean + attention / block.heads
    return linear(sum(heads) / block.heads, block.output), mean


def quantiles(model: TemporalFusionTransformer, hidden: Tensor) -> Tensor:
    return torch.stack(sorted(linear(hidden, model.head.linear), key=lambda value: value.item()))


def forecast_one(model: TemporalFusionTransformer, inputs: Inputs, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Quantiles [horizon, quantiles], static, past and future weights and attention of window `b`; dropout is off."""
    lookback, horizon, hidden_size = model.lookback, model.horizon, model.hidden_size
    zeros = inputs.known_reals.new_zeros(hidden_size)
    selecting = enriching = None
    hidden = cell = zeros
    static_weights = zeros[:0]
    if model.static_selection is not None and model.contexts is not None:
        vectors = embed(model.static_embedding, inputs.static_reals[b], inputs.static_categoricals[b])
        static, static_weights = select(model.static_selection, vectors, None)
        selecting, hidden, cell, enriching = (grn(context, static, None) for context in model.contexts)
    past, future, past_weights, future_weights = [], [], [], []
    for t in range(lookback):
        vectors = embed(model.known_embedding, inputs.known_reals[b, t], inputs.known_categoricals[b, t])
        vectors += embed(model.observed_embedding, inputs.observed_reals[b, t], inputs.observed_categoricals[b, t])
        chosen, weights = select(model.past_selection, vectors, selecting)
        past.append(chosen)
        past_weights.append(weights)
    for t in range(lookback, lookback + horizon):
        if model.future_selection is None:
            future.append(zeros)
            future_weights.append(zeros[:0])
            continue
        vectors = embed(model.known_embedding, inputs.known_reals[b, t], inputs.known_categoricals[b, t])
        chosen, weights = select(model.future_selection, vectors, selecting)
        future.append(chosen)
        future_weights.append(weights)
    states = [(hidden, cell)] * model.encoder.num_layers
    recurrent = lstm(model.encoder, past, states)
    recurrent += lstm(model.decoder, future, states)
    temporal = [gate_add_norm(model.lstm_gate, h, x) for h, x in zip(recurrent, past + future, strict=True)]
    enriched = [grn(model.enrichment, row, enriching) for row in temporal]
    out, attention = [], []
    for step in range(horizon):
        attended, mean = attend(model, enriched, step)
        attended = gate_add_norm(model.attention_gate, attended, enriched[lookback + step])
        final = gate_add_norm(model.output_gate, grn(model.positionwise, attended, None), temporal[lookback + step])
        out.append(quantiles(model, final))
        attention.append(mean)
    return torch.stack(out), static_weights, torch.stack(past_weights), torch.stack(future_weights), torch.stack(attention)
