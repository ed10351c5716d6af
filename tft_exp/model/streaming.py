"""Variable selection in blocks of variables and rows, small enough for a core's cache, with a backward pass of its own.

Values and gradients are those of `VariableSelection` on `VariableEmbedding` (sections 4.1 and 4.2; tests compare them), but nothing
is kept for the backward pass beside the inputs and dropout's mask, a byte an element: blocks are computed again. What the
equations leave undone is not done:

- A real's embedding is affine in its value, and so is every linear map of it: one affine map, of products of weights alone.
- A categorical's network has as many values as there are categories: before dropout, and without it to the end.
- Without dropout, a network's second layer and its gate are one linear map; used where no gradient is wanted.

Dropout takes one random byte an element: its probability is rounded to the nearest 256th, what it keeps is scaled by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tft_exp.model.blocks import VariableEmbedding, VariableSelection, draw_kept

NORM_EPSILON = 1e-5  # nn.LayerNorm's


class Part(NamedTuple):
    """The variables of one role: their embedding and values, [rows, reals] and [rows, categoricals]."""

    embedding: VariableEmbedding
    reals: Tensor
    categoricals: Tensor


def stream_selection(
    selection: VariableSelection, parts: Sequence[Part], context: Tensor | None, block_elements: int
) -> tuple[Tensor, Tensor]:
    """What `selection` gives for the embedded variables of `parts`, in their order: [rows, hidden] and weights [rows, variables].

    `context` is [rows, hidden] or None; a block is of `block_elements` elements of hidden layers, or fewer.
    """
    sources = [source for part in parts for source in _sources(part)]
    shares = _shares(selection, sources, context)
    grn = selection.variables
    kept = grn.dropout.kept
    final = kept == 256 and not torch.is_grad_enabled()
    of_products = (grn.second.weight, grn.second.bias, grn.gate.weight, grn.gate.bias)
    layers = _Layers(*map(_as_products_take_it, of_products), grn.norm_weight)  # type: ignore[call-arg]
    selected = shares @ grn.norm_bias.squeeze(1)  # the norms' biases, weighted apart from the rest
    tensors: list[Tensor] = []
    ranges: list[slice] = []
    first = 0
    for source in sources:
        of = slice(first, first := first + source.variables)
        if final and isinstance(source, _Categoricals):
            selected = selected + source.weighted(layers.part(of), grn.first.weight[of], grn.first.bias[of], shares[:, of])
            continue
        ranges.append(of)
        tensors.extend(source.streamed(layers.part(of), grn.first.weight[of], grn.first.bias[of]))
    if ranges:
        run = _Run(tuple(ranges), kept, block_elements)
        if final:
            folded = len(shares) > 2 * layers.norm.shape[-1]  # else the product of weights takes longer than it saves
            selected = selected + _stream(run, shares, layers.folded() if folded else layers, tensors, None, folded=folded)
        else:
            streamed: Tensor = _Streamed.apply(run, shares, *layers, *tensors)  # type: ignore[no-untyped-call]
            selected = selected + streamed
    return _as_products_take_it(selected), shares


def _as_products_take_it(tensor: Tensor) -> Tensor:
    """In autocast's type, where that is on."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _shares(selection: VariableSelection, sources: Sequence[_Reals | _Categoricals], context: Tensor | None) -> Tensor:
    """The selection weights (eq. 6), [rows, variables]: a layer on all embeddings is a sum over variables."""
    network = selection.weights
    assert network.skip is not None
    summed: list[Tensor] = []
    for layer in (network.first, network.skip):
        of_variable = layer.weight.unflatten(1, (sum(source.variables for source in sources), -1)).permute(1, 2, 0)
        total: Tensor = layer.bias
        first = 0
        for source in sources:
            total = total + source.mapped(of_variable[first : (first := first + source.variables)])
        summed.append(total)
    hidden, skipped = summed
    if network.context is not None and context is not None:
        hidden = hidden + network.context(context)
    return torch.softmax(network.gate(network.second(F.elu(hidden)), skipped), dim=-1)


class _Layers(NamedTuple):
    """The variables' networks after their first layers."""

    second: Tensor  # [variables, hidden, hidden]
    second_bias: Tensor  # [variables, 1, hidden]
    gate: Tensor  # [variables, hidden, 2 * hidden]
    gate_bias: Tensor  # [variables, 1, 2 * hidden]
    norm: Tensor  # [variables, 1, hidden]

    def part(self, of: slice) -> _Layers:
        return _Layers(*(tensor[of] for tensor in self))

    def folded(self) -> _Layers:
        """With second layers and gates in one."""
        bias = torch.baddbmm(self.gate_bias, self.second_bias, self.gate)
        return self._replace(gate=torch.bmm(self.second, self.gate), gate_bias=bias)


class _Reals(NamedTuple):
    """Reals of one role: values and ones [variables, 2, rows], and the map of the two to embeddings [variables, 2, hidden]."""

    values: Tensor
    embedding: Tensor

    @property
    def variables(self) -> int:
        return len(self.values)

    def mapped(self, weight: Tensor) -> Tensor:
        """The sum over variables of embedding @ weight, [variables, hidden, outputs]: [rows, outputs]."""
        maps = torch.bmm(self.embedding, weight)
        return self.values[:, 0].t() @ maps[:, 0] + maps[:, 1].sum(0)

    def streamed(self, layers: _Layers, first: Tensor, bias: Tensor) -> list[Tensor]:
        """Three tensors, as `_open` takes them: values, the maps to embeddings and to first layers."""
        inner = torch.bmm(self.embedding, first).to(bias.dtype) + F.pad(bias, (0, 0, 1, 0))
        return [self.values, self.embedding, inner]


class _Categoricals(NamedTuple):
    """Categoricals of one role: of every variable the embeddings that there are [variables, categories, hidden], and for every row
    which one it has [variables, rows], counted over all variables."""

    embedded: Tensor
    codes: Tensor

    @property
    def variables(self) -> int:
        return len(self.codes)

    def mapped(self, weight: Tensor) -> Tensor:
        """As of reals."""
        maps = torch.bmm(self.embedded, weight).to(self.embedded.dtype)  # under autocast summed as they were embedded
        return F.embedding_bag(self.codes.t(), maps.flatten(0, 1), mode="sum")

    def inner(self, layers: _Layers, first: Tensor, bias: Tensor) -> Tensor:
        """What dropout is applied to, [variables, categories, hidden]."""
        return torch.baddbmm(layers.second_bias, F.elu(torch.baddbmm(bias, self.embedded, first)), layers.second)

    def streamed(self, layers: _Layers, first: Tensor, bias: Tensor) -> list[Tensor]:
        """Three tensors: codes, embeddings and what dropout is applied to, both [variables * categories, hidden]."""
        return [self.codes, self.embedded.flatten(0, 1), self.inner(layers, first, bias).flatten(0, 1)]

    def weighted(self, layers: _Layers, first: Tensor, bias: Tensor, shares: Tensor) -> Tensor:
        """What they add to the selection [rows, hidden], without dropout."""
        normed = _gate(layers, self.embedded.clone(), self.inner(layers, first, bias), 1.0).normed.mul_(layers.norm)
        return F.embedding_bag(self.codes.t(), normed.flatten(0, 1), mode="sum", per_sample_weights=shares.to(normed.dtype))


def _sources(part: Part) -> Iterator[_Reals | _Categoricals]:
    embedding = part.embedding
    if embedding.reals:
        values = part.reals.t()
        yield _Reals(torch.stack([values, torch.ones_like(values)], dim=1), torch.cat([embedding.weight, embedding.bias], dim=1))
    if embedding.categoricals:
        rows = len(part.categoricals)
        categories = embedding.places.shape[1]
        if categories <= rows:
            embedded, codes = embedding.table(embedding.places), part.categoricals
        else:  # fewer rows than categories: of every row its own
            embedded = embedding.table(part.categoricals + embedding.offsets).transpose(0, 1)
            codes = torch.arange(rows, device=embedded.device)[:, None].expand(-1, embedding.categoricals)
        shifts = torch.arange(embedding.categoricals, device=codes.device) * embedded.shape[1]
        yield _Categoricals(embedded, (codes + shifts).t().contiguous())


@dataclass(frozen=True)
class _Run:
    """What is streamed: ranges of variables, each of one source; how many of 256 elements dropout keeps; the elements of a block."""

    ranges: tuple[slice, ...]
    kept: int
    block_elements: int

    @property
    def scale(self) -> float:
        return 256 / max(1, self.kept)

    def blocks(self, rows: int, hidden: int) -> Iterator[_Block]:
        together = max(1, self.block_elements // (rows * hidden))
        height = rows if together > 1 else max(1, min(rows, self.block_elements // hidden))
        for source, of in enumerate(self.ranges):
            for first in range(of.start, of.stop, together):
                variables = slice(first, min(first + together, of.stop))
                within = slice(first - of.start, variables.stop - of.start)
                for begin in range(0, rows, height):
                    yield _Block(variables, source, within, slice(begin, min(begin + height, rows)))


class _Block(NamedTuple):
    variables: slice
    source: int
    within: slice  # the variables within their source
    rows: slice


class _Opened(NamedTuple):
    """What goes into a block's gates, each [variables, rows, hidden]."""

    embedded: Tensor
    activated: Tensor | None  # of reals, the second layer's input
    inner: Tensor  # what dropout is applied to


def _open(block: _Block, tensors: Sequence[Tensor], layers: _Layers, *, second: bool = True) -> _Opened:
    """`tensors` are three of each source; without `second` reals stop before their second layer."""
    source, embedding, inner = tensors[3 * block.source : 3 * block.source + 3]
    if source.is_floating_point():
        values = source[block.within, 0, block.rows, None]
        maps, inner_maps = embedding[block.within], inner[block.within]
        embedded = torch.addcmul(maps[:, 1:], values, maps[:, :1])
        linear = torch.addcmul(inner_maps[:, 1:], values, inner_maps[:, :1]).to(layers.second.dtype)
        activated = torch.maximum(linear, linear.clamp(max=0).exp_().sub_(1), out=linear)  # ELU; exp is much faster than expm1
        if not second:
            return _Opened(embedded, None, activated)
        return _Opened(embedded, activated, torch.baddbmm(layers.second_bias, activated, layers.second))
    codes = source[block.within, block.rows]
    return _Opened(F.embedding(codes, embedding), None, F.embedding(codes, inner))


class _Gated(NamedTuple):
    """Each [variables, rows, hidden], but for `rate` [variables, rows, 1], one over the standard deviation."""

    normed: Tensor
    rate: Tensor
    opened: Tensor  # sigmoid of the gate
    passed: Tensor  # what the gate let through


def _gate(layers: _Layers, embedded: Tensor, dropped: Tensor, scale: float) -> _Gated:
    """Gate, residual connection and norm (eq. 2 and 5) without its affine map; `embedded` becomes `normed`."""
    (value, gate), (value_bias, gate_bias) = layers.gate.chunk(2, dim=-1), layers.gate_bias.chunk(2, dim=-1)
    passed = torch.baddbmm(value_bias, dropped, value, alpha=scale)
    opened = torch.baddbmm(gate_bias, dropped, gate, alpha=scale).sigmoid_()
    normed = embedded.add_(passed.mul_(opened))
    normed.sub_(normed.mean(-1, keepdim=True))
    rate = normed.square().mean(-1, keepdim=True).add_(NORM_EPSILON).rsqrt_()
    return _Gated(normed.mul_(rate), rate, opened, passed)


def _stream(run: _Run, shares: Tensor, layers: _Layers, tensors: Sequence[Tensor], mask: Tensor | None, *, folded: bool) -> Tensor:
    """Networks and weighted sum of all blocks, [rows, hidden]. Draws dropout's `mask`; where `folded`, the gates of `layers` hold the
    second layers, too."""
    rows, hidden = len(shares), layers.norm.shape[-1]
    selected = shares.new_zeros(rows, hidden)
    by_variable = shares.t()[..., None]
    for block in run.blocks(rows, hidden):
        own = layers.part(block.variables)
        embedded, _, inner = _open(block, tensors, own, second=not folded)
        if mask is not None:
            inner.mul_(mask[block.variables, block.rows].copy_(draw_kept(inner, run.kept)))
        normed = _gate(own, embedded, inner, run.scale).normed.mul_(own.norm).mul_(by_variable[block.variables, block.rows])
        selected[block.rows] += normed[0] if len(normed) == 1 else normed.sum(0)
    return selected


class _Streamed(torch.autograd.Function):
    """`_stream`, whose backward pass opens every block again."""

    @staticmethod
    def forward(ctx: Any, run: _Run, shares: Tensor, *tensors: Tensor) -> Tensor:
        layers, of_sources = _Layers(*tensors[:5]), tensors[5:]
        mask = None
        if run.kept < 256:
            mask = torch.empty(len(layers.norm), len(shares), layers.norm.shape[-1], dtype=torch.uint8, device=shares.device)
        ctx.run = run
        ctx.save_for_backward(shares, mask, *tensors)
        return _stream(run, shares, layers, of_sources, mask, folded=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        run: _Run = ctx.run
        shares, mask, *tensors = ctx.saved_tensors
        layers, of_sources = _Layers(*tensors[:5]), tensors[5:]
        sums = _Layers(*(torch.zeros_like(tensor, dtype=shares.dtype) for tensor in layers))
        # Codes have no gradient; nor has what a source's first tensor holds of reals, the rows' own values.
        source_sums = [None if place % 3 == 0 else torch.zeros_like(tensor, dtype=shares.dtype) for place, tensor in enumerate(of_sources)]
        of_shares = torch.empty_like(shares.t())
        by_variable = shares.t()[..., None]
        for block in run.blocks(len(shares), layers.norm.shape[-1]):
            kept = None if mask is None else mask[block.variables, block.rows]
            share = by_variable[block.variables, block.rows]
            of_shares[block.variables, block.rows] = _close(
                block,
                kept,
                run.scale,
                gradient[block.rows],
                share,
                layers.part(block.variables),
                of_sources,
                sums.part(block.variables),
                source_sums,
            )
        return None, of_shares.t(), *sums, *source_sums


def _close(
    block: _Block,
    kept: Tensor | None,
    scale: float,
    gradient: Tensor,
    share: Tensor,
    layers: _Layers,
    tensors: Sequence[Tensor],
    of_layers: _Layers,
    of_tensors: Sequence[Tensor | None],
) -> Tensor:
    """A block's backward pass, from the gradient of its rows' selection [rows, hidden]: adds to the gradients of its layers and
    its source's tensors, and returns that of its shares, [variables, rows]."""
    embedded, activated, inner = _open(block, tensors, layers)
    if kept is not None:
        inner.mul_(kept)
    normed, rate, opened, passed = _gate(layers, embedded, inner, scale)

    at_norm = gradient * normed
    of_share = torch.bmm(at_norm, layers.norm.mT).squeeze(-1)
    _add_product(of_layers.norm, share.mT, at_norm)
    at_norm = torch.mul(gradient, share, out=at_norm).mul_(layers.norm)
    # The norm's own backward pass, as of rows whose mean is 0 and whose deviation is 1, which `normed` has.
    ones = torch.ones_like(rate)
    width = [normed.shape[-1]]
    at_sum = torch.ops.aten.native_layer_norm_backward(
        at_norm, normed, width, torch.zeros_like(rate), ones, None, None, [True, False, False]
    )[0].mul_(rate)

    at_passed = at_sum.to(passed.dtype)
    at_value = at_passed * opened
    at_gate = at_passed * passed
    at_gate.addcmul_(at_gate, opened, value=-1)
    (value, gate), (of_value, of_gate) = layers.gate.chunk(2, dim=-1), of_layers.gate.chunk(2, dim=-1)
    of_value_bias, of_gate_bias = of_layers.gate_bias.chunk(2, dim=-1)
    for at, of_weight, of_bias in ((at_value, of_value, of_value_bias), (at_gate, of_gate, of_gate_bias)):
        _add_product(of_weight, inner.mT, at, scale)
        of_bias += at.sum(1, keepdim=True)
    at_inner = torch.bmm(at_value, value.mT).baddbmm_(at_gate, gate.mT, beta=scale, alpha=scale)
    if kept is not None:
        at_inner.mul_(kept)

    source = tensors[3 * block.source]
    of_embedding, of_inner = of_tensors[3 * block.source + 1 : 3 * block.source + 3]
    assert of_embedding is not None
    assert of_inner is not None
    if activated is None:
        codes = source[block.within, block.rows]
        of_embedding += torch.ops.aten.embedding_dense_backward(at_sum, codes, len(of_embedding), -1, False)
        of_inner += torch.ops.aten.embedding_dense_backward(at_inner, codes, len(of_inner), -1, False)
    else:
        _add_product(of_layers.second, activated.mT, at_inner)
        of_layers.second_bias.add_(at_inner.sum(1, keepdim=True))
        at_activated = torch.bmm(at_inner, layers.second.mT)
        at_linear = torch.ops.aten.elu_backward(at_activated, 1, 1, 1, True, activated)
        values = source[block.within, :, block.rows]
        _add_product(of_embedding[block.within], values, at_sum)
        _add_product(of_inner[block.within], values, at_linear.to(values.dtype))
    return of_share


def _add_product(into: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
    if left.dtype == into.dtype:
        into.baddbmm_(left, right, alpha=scale)
    else:
        into.add_(torch.bmm(left, right), alpha=scale)
