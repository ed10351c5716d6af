"""Blocks of the Temporal Fusion Transformer (Lim et al. 2021, section 4), batched over variables."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout; on a CPU by one random byte an element, which is five times as fast as torch's there: the probability is rounded
    to the nearest 256th, and what is kept is scaled by that."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def kept(self) -> int:
        """Of 256 elements; in training."""
        return 256 - round(256 * self.p) if self.training else 256

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.dropout(x, self.p, self.training)
        if self.kept == 256:
            return x
        return (x * draw_kept(x, self.kept)).mul_(256 / max(1, self.kept))


def draw_kept(like: Tensor, kept: int) -> Tensor:
    """Ones and zeros of a shape, uint8, ones with a chance of `kept` (0 to 255) in 256; eight of each 64-bit number."""
    count = like.numel()
    drawn = torch.empty(-(-count // 8), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    return torch.lt(drawn.view(torch.uint8)[:count].view(like.shape), kept).view(torch.uint8)


class GatedResidualNetwork(nn.Module):
    """GRN (section 4.1, eq. 2-5): LayerNorm(skip(a) + GLU(W1 ELU(W2 a + W3 c))), of a context of `context_size`, or of none."""

    def __init__(self, inputs: int, hidden_size: int, outputs: int, dropout: float, *, context_size: int | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden_size)
        self.context = nn.Linear(context_size, hidden_size, bias=False) if context_size else None
        self.second = nn.Linear(hidden_size, hidden_size)
        self.gate = GateAddNorm(hidden_size, outputs, dropout)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else None

    def forward(self, a: Tensor, context: Tensor | None = None) -> Tensor:
        """`a` [..., inputs], `context` broadcastable to [..., context]; returns [..., outputs]."""
        hidden = self.first(a)
        if self.context is not None and context is not None:
            hidden = hidden + self.context(context)
        hidden = self.second(F.elu(hidden))
        gated: Tensor = self.gate(hidden, a if self.skip is None else self.skip(a))
        return gated


class GateAddNorm(nn.Module):
    """Dropout, gated linear unit, residual connection and LayerNorm (eq. 2 and 5; also the gated skips of section 4.5)."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(inputs, 2 * outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """`hidden` [..., inputs] and `residual` [..., outputs]; returns [..., outputs]."""
        normed: Tensor = self.norm(residual + F.glu(self.linear(self.dropout(hidden)), dim=-1))
        return normed


class PerVariableLinear(nn.Module):
    """One linear map for each of N variables, as one batched product: [N, rows, in] to [N, rows, out]."""

    def __init__(self, variables: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # nn.Linear's own bound, by the fan-in of one variable
        self.weight = nn.Parameter(torch.empty(variables, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(variables, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class PerVariableGRN(nn.Module):
    """The GRN of each variable, with its own weights (section 4.2, eq. 7), on [N, rows, hidden]."""

    def __init__(self, variables: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.first = PerVariableLinear(variables, hidden_size, hidden_size)
        self.second = PerVariableLinear(variables, hidden_size, hidden_size)
        self.gate = PerVariableLinear(variables, hidden_size, 2 * hidden_size)
        self.dropout = Dropout(dropout)
        self.norm_weight = nn.Parameter(torch.ones(variables, 1, hidden_size))
        self.norm_bias = nn.Parameter(torch.zeros(variables, 1, hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(F.elu(self.first(x)))
        gated = F.glu(self.gate(self.dropout(hidden)), dim=-1)
        return F.layer_norm(x + gated, x.shape[-1:]) * self.norm_weight + self.norm_bias


class VariableEmbedding(nn.Module):
    """Every variable of one role to a vector: reals by an affine map of their own, categoricals by a table (section 4.2)."""

    offsets: Tensor  # [categoricals], where a variable's rows of the table begin
    places: Tensor  # [categoricals, categories of the one with most], the table's rows; one that has fewer ends with its last

    def __init__(self, reals: int, cardinalities: tuple[int, ...], hidden_size: int) -> None:
        super().__init__()
        self.reals = reals
        if reals:
            self.weight = nn.Parameter(torch.empty(reals, 1, hidden_size).uniform_(-1.0, 1.0))
            self.bias = nn.Parameter(torch.empty(reals, 1, hidden_size).uniform_(-1.0, 1.0))
        self.categoricals = len(cardinalities)
        if cardinalities:
            # One table for all, each variable's codes shifted to its own rows.
            self.table = nn.Embedding(sum(cardinalities), hidden_size)
            offsets = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
            self.register_buffer("offsets", offsets, persistent=False)
            last = torch.tensor(cardinalities)[:, None] - 1
            places = offsets[:, None] + torch.minimum(torch.arange(max(cardinalities)), last)
            self.register_buffer("places", places, persistent=False)

    def forward(self, reals: Tensor, categoricals: Tensor) -> list[Tensor]:
        """[rows, reals] and [rows, categoricals] to tensors [rows, variables, hidden], reals first."""
        parts = []
        if self.reals:
            parts.append(torch.addcmul(self.bias.squeeze(1), reals[..., None], self.weight.squeeze(1)))
        if self.categoricals:
            parts.append(self.table(categoricals + self.offsets))
        return parts


class VariableSelection(nn.Module):
    """Variable selection network (section 4.2, eq. 6-8).

    The network of the weights has a hidden layer of `weights_size`; by default one no wider than there are variables, as
    pytorch-forecasting and darts have it, which learns sooner than the paper's of `hidden_size`.
    """

    def __init__(self, variables: int, hidden_size: int, dropout: float, *, context: bool, weights_size: int | None = None) -> None:
        super().__init__()
        self.weights = GatedResidualNetwork(
            variables * hidden_size,
            weights_size or min(hidden_size, variables),
            variables,
            dropout,
            context_size=hidden_size if context else None,
        )
        self.variables = PerVariableGRN(variables, hidden_size, dropout)

    def forward(self, embedded: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """`embedded` [rows, variables, hidden], `context` [rows, hidden]; returns [rows, hidden] and weights [rows, variables]."""
        weights = torch.softmax(self.weights(embedded.flatten(1), context), dim=-1)
        # Rows first, flattening is a view, and batched products read [variables, rows, hidden] by its strides: no copy.
        processed = self.variables(embedded.transpose(0, 1))
        # Sum over variables weighted by selection: rows as batch, [1, variables] @ [variables, hidden].
        selected = torch.bmm(weights[:, None, :].to(processed.dtype), processed.transpose(0, 1)).squeeze(1)
        return selected, weights


class InterpretableAttention(nn.Module):
    """Interpretable multi-head attention (section 4.4, eq. 13-16): values shared by the heads, heads averaged.

    Only the decoder's rows ask, because only they are forecast from; the mask lets them see the encoder and themselves
    up to their own step.
    """

    hidden_from: Tensor  # [horizon, lookback + horizon], true where a decoder row may not look

    def __init__(self, hidden_size: int, heads: int, dropout: float, lookback: int, horizon: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, hidden_size // heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)  # a bias, alike for all rows of a query, is nothing to its softmax
        self.value = nn.Linear(hidden_size, self.head_size)
        self.output = nn.Linear(self.head_size, hidden_size, bias=False)
        self.dropout = Dropout(dropout)
        steps = torch.arange(lookback + horizon)
        self.register_buffer("hidden_from", steps[None, :] > steps[lookback:, None], persistent=False)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """`rows` [batch, lookback + horizon, hidden]; returns [batch, horizon, hidden] and the mean attention
        [batch, horizon, lookback + horizon]."""
        horizon = self.hidden_from.shape[0]
        query = self.query(rows[:, -horizon:]).unflatten(-1, (self.heads, self.head_size))
        if self.heads * horizon < rows.shape[1]:
            # query . (key map of a row) = (transposed key map of the query) . row: fewer are mapped.
            by_head = self.key.weight.unflatten(0, (self.heads, self.head_size))
            asked = torch.einsum("bqnd,ndh->bnqh", query, by_head).flatten(1, 2)
            products = (asked @ rows.transpose(1, 2)).unflatten(1, (self.heads, horizon))
        else:
            key = self.key(rows).unflatten(-1, (self.heads, self.head_size))
            products = query.transpose(1, 2) @ key.permute(0, 2, 3, 1)
        scores = products / math.sqrt(self.head_size)
        attention = torch.softmax(scores.masked_fill(self.hidden_from, -torch.inf), dim=-1)
        # With shared values the mean over heads of (attention @ value) is (mean attention) @ value, and that the value of the mean row.
        mean = self.dropout(attention).mean(1)
        seen = F.linear((mean.to(rows.dtype) @ rows), self.value.weight) + mean.sum(-1, keepdim=True).to(rows.dtype) * self.value.bias
        return self.output(seen), attention.mean(1)
