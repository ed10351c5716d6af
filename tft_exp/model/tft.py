"""The Temporal Fusion Transformer (Lim et al. 2021), in full and without a Python loop over variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tft_exp.model.blocks import GateAddNorm, GatedResidualNetwork, InterpretableAttention, VariableEmbedding, VariableSelection
from tft_exp.model.initial import initialize
from tft_exp.model.inputs import Inputs, InputSizes
from tft_exp.model.quantiles import QuantileHead
from tft_exp.model.streaming import Part, stream_selection


class Explanation(NamedTuple):
    """A forecast and what it was made from. Weights of an absent role have a last dimension of 0."""

    quantiles: Tensor  # [windows, horizon, quantiles]
    static_weights: Tensor  # [windows, static], each row sums to 1
    past_weights: Tensor  # [windows, lookback, known + observed]
    future_weights: Tensor  # [windows, horizon, known]
    attention: Tensor  # [windows, horizon, lookback + horizon], the mean over heads


class TemporalFusionTransformer(nn.Module):
    """Forecasts quantiles of a target from static, known and observed variables.

    Variables are ordered reals before categoricals within a role, and past variables are the known ones before the
    observed ones: known reals, known categoricals, observed reals, observed categoricals. Any role may be absent, but
    not known and observed both: ValueError.

    What a row goes through before the LSTM does not depend on the window that it is in (its context is its entity's), and is
    done once for all windows of a run. Without dropout that is exact; with it the windows of a run share a row's mask.

    With `block_elements` that is done in blocks of so many elements (model.streaming), and again in the backward pass instead of
    being kept; with `recompute` what follows the LSTM is done again, too. Both change no value.
    """

    def __init__(
        self,
        sizes: InputSizes,
        *,
        hidden_size: int,
        attention_heads: int,
        lstm_layers: int,
        dropout: float,
        lookback: int,
        horizon: int,
        quantiles: Sequence[float],
        selection_size: int | None = None,
        block_elements: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.block_elements, self.recompute = block_elements, recompute
        if sizes.known + sizes.observed == 0:
            raise ValueError("a model needs at least one known or observed variable")
        self.sizes, self.hidden_size, self.lookback, self.horizon = sizes, hidden_size, lookback, horizon
        self.lstm_layers = lstm_layers
        has_static = sizes.static > 0

        def grn(*, context: bool = False) -> GatedResidualNetwork:
            context_size = hidden_size if context else None
            return GatedResidualNetwork(hidden_size, hidden_size, hidden_size, dropout, context_size=context_size)

        def selection(variables: int, *, context: bool) -> VariableSelection:
            return VariableSelection(variables, hidden_size, dropout, context=context, weights_size=selection_size)

        self.static_embedding = VariableEmbedding(sizes.static_reals, sizes.static_cardinalities, hidden_size)
        self.known_embedding = VariableEmbedding(sizes.known_reals, sizes.known_cardinalities, hidden_size)
        self.observed_embedding = VariableEmbedding(sizes.observed_reals, sizes.observed_cardinalities, hidden_size)
        self.static_selection = selection(sizes.static, context=False) if has_static else None
        self.past_selection = selection(sizes.known + sizes.observed, context=has_static)
        self.future_selection = selection(sizes.known, context=has_static) if sizes.known else None
        # Section 4.3: one encoder for each of the four contexts, here selection, LSTM hidden, LSTM cell and enrichment.
        self.contexts = nn.ModuleList(grn() for _ in range(4)) if has_static else None
        between_layers = dropout if lstm_layers > 1 else 0.0
        self.encoder = nn.LSTM(hidden_size, hidden_size, lstm_layers, batch_first=True, dropout=between_layers)
        self.decoder = nn.LSTM(hidden_size, hidden_size, lstm_layers, batch_first=True, dropout=between_layers)
        self.lstm_gate = GateAddNorm(hidden_size, hidden_size, dropout)
        self.enrichment = grn(context=has_static)
        self.attention = InterpretableAttention(hidden_size, attention_heads, dropout, lookback, horizon)
        self.attention_gate = GateAddNorm(hidden_size, hidden_size, dropout)
        self.positionwise = grn()
        self.output_gate = GateAddNorm(hidden_size, hidden_size, 0.0)  # its input comes from a gate already, as in the authors' code
        self.head = QuantileHead(hidden_size, quantiles)
        initialize(self)

    def forward(self, inputs: Inputs) -> Tensor:
        """Quantile forecasts, [windows, horizon, quantiles], run by run, in the scale of the inputs' target and rising."""
        return self.explain(inputs).quantiles

    def explain(self, inputs: Inputs) -> Explanation:
        """The forecast with its variable selection weights (eq. 6) and attention (eq. 14-16)."""
        lookback, stride = self.lookback, inputs.stride
        static, static_weights = self._static(inputs)
        selecting = enriching = hidden = cell = None
        if self.contexts is not None and static is not None:
            selecting, hidden, cell, enriching = (context(static) for context in self.contexts)
        of_past, past_weights, of_future, future_weights = self._select(inputs, selecting)
        past, future = cut_windows(of_past, lookback, stride), cut_windows(of_future, self.horizon, stride)
        windows = past.shape[0] // of_past.shape[0]
        hidden, cell, enriching = (_each(context, windows) for context in (hidden, cell, enriching))

        # Section 4.5.1: the contexts are the first states of every layer.
        states = None
        if hidden is not None and cell is not None:
            states = tuple(state.expand(self.lstm_layers, -1, -1).contiguous() for state in (hidden, cell))
        encoded, states = self.encoder(past, states)
        decoded, _ = self.decoder(future, states)
        quantiles, attention = again_if(self.recompute, self._decode, past, future, encoded, decoded, enriching)
        return Explanation(
            quantiles,
            static_weights.repeat_interleave(windows, dim=0),
            cut_windows(past_weights, lookback, stride),
            cut_windows(future_weights, self.horizon, stride),
            attention,
        )

    def replace_regions(self, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace each method that computes without a break by what `replace` makes of it, such as its compiled form."""
        for name in ("_static", "_decode") if self.block_elements is not None else ("_static", "_decode", "_by_row"):
            setattr(self, name, replace(getattr(self, name)))

    def _decode(self, past: Tensor, future: Tensor, encoded: Tensor, decoded: Tensor, enriching: Tensor | None) -> tuple[Tensor, Tensor]:
        """From the LSTM's outputs to quantiles and attention (sections 4.5.1 to 4.6)."""
        temporal = self.lstm_gate(torch.cat([encoded, decoded], dim=1), torch.cat([past, future], dim=1))
        enriched = self.enrichment(temporal, None if enriching is None else enriching[:, None])
        attended, attention = self.attention(enriched)
        attended = self.attention_gate(attended, enriched[:, self.lookback :])
        output = self.output_gate(self.positionwise(attended), temporal[:, self.lookback :])
        return self.head(output), attention

    def _static(self, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
        """The selected static vector, [runs, hidden], or None, and its weights."""
        if self.static_selection is None:
            return None, inputs.static_reals[:, :0]
        embedded = torch.cat(self.static_embedding(inputs.static_reals, inputs.static_categoricals), dim=1)
        selected, weights = self.static_selection(embedded, None)
        return selected, weights

    def _select(self, inputs: Inputs, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Selected past [runs, lookback + extra, hidden] and future [runs, horizon + extra, hidden], each with its weights."""
        steps = inputs.known_reals.shape[1] - self.horizon  # of the past; as many rows later begins what is no window's past
        known = inputs.known_reals, inputs.known_categoricals
        of_past = [
            (self.known_embedding, known[0][:, :steps], known[1][:, :steps]),
            (self.observed_embedding, inputs.observed_reals, inputs.observed_categoricals),
        ]
        past, past_weights = self._by_row(self.past_selection, of_past, context)
        future = self.known_embedding, known[0][:, self.lookback :], known[1][:, self.lookback :]
        if self.future_selection is None:
            nothing = past.new_zeros(len(past), future[1].shape[1], self.hidden_size)
            return past, past_weights, nothing, nothing[..., :0]
        return past, past_weights, *self._by_row(self.future_selection, [future], context)

    def _by_row(
        self, selection: VariableSelection, parts: Sequence[tuple[VariableEmbedding, Tensor, Tensor]], context: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Select among variables [runs, steps, variables], every row with its run's context; [runs, steps, ...] again."""
        steps = parts[0][1].shape[1]
        rows = [Part(embedding, reals.flatten(0, 1), categoricals.flatten(0, 1)) for embedding, reals, categoricals in parts]
        contexts = _each(context, steps)
        # A network without a skip layer has as many inputs as outputs, which a hidden size of 1 alone gives.
        if self.block_elements is None or selection.weights.skip is None:
            # No name for the parts: they would stay beside the whole.
            selected, weights = selection(torch.cat([v for part in rows for v in part.embedding(*part[1:])], dim=1), contexts)
        else:
            selected, weights = stream_selection(selection, rows, contexts, self.block_elements)
        return selected.unflatten(0, (-1, steps)), weights.unflatten(0, (-1, steps))


def again_if(recompute: bool, function: Callable[..., tuple[Tensor, Tensor]], *arguments: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the function returns; with `recompute`, where gradients are wanted, without keeping what its backward pass needs."""
    if not (recompute and torch.is_grad_enabled()):
        return function(*arguments)
    found: tuple[Tensor, Tensor] = checkpoint(function, *arguments, use_reentrant=False)
    return found


def _each(context: Tensor | None, times: int) -> Tensor | None:
    """A context of each run, [runs, hidden], for each of its rows or windows."""
    return context if context is None or times == 1 else context.repeat_interleave(times, dim=0)


def cut_windows(rows: Tensor, length: int, stride: int) -> Tensor:
    """[runs, rows, width] to every window of `length` rows, `stride` apart: [runs * windows, length, width]."""
    if rows.shape[1] == length:
        return rows
    return rows.unfold(1, length, stride).transpose(2, 3).flatten(0, 1)
