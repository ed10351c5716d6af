"""Where dropout sits. At probability 1 it leaves of a branch what the equations say, with nothing left to chance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tft_exp.model.blocks import Dropout, GatedResidualNetwork, InterpretableAttention, PerVariableGRN, draw_kept


def test_dropout_before_the_gate_leaves_its_bias_alone() -> None:
    """GLU(W 0 + b): a dropout after the gate would leave nothing, none at all would leave the hidden state."""
    torch.manual_seed(0)
    grn = GatedResidualNetwork(5, 8, 6, dropout=1.0, context_size=8)
    a, context = torch.randn(4, 5), torch.randn(4, 8)
    assert grn.skip is not None
    expected = grn.gate.norm(grn.skip(a) + F.glu(grn.gate.linear.bias, dim=-1))
    torch.testing.assert_close(grn(a, context), expected)
    assert not torch.allclose(grn.eval()(a, context), expected, atol=1e-2)


def test_dropout_before_the_gate_of_every_variable() -> None:
    torch.manual_seed(0)
    grn = PerVariableGRN(3, 8, dropout=1.0)
    x = torch.randn(3, 4, 8)
    expected = F.layer_norm(x + F.glu(grn.gate.bias, dim=-1), (8,))
    torch.testing.assert_close(grn(x), expected)
    assert not torch.allclose(grn.eval()(x), expected, atol=1e-2)


def test_dropout_of_attention_is_not_in_what_is_explained() -> None:
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2, dropout=1.0, lookback=3, horizon=2)
    rows = torch.randn(4, 5, 8)
    output, shares = attention(rows)
    assert torch.all(output == 0)
    torch.testing.assert_close(shares.sum(-1), torch.ones(4, 2))
    kept, same = attention.eval()(rows)
    assert torch.all(kept.abs().amax(-1) > 0)
    assert torch.equal(shares, same)


def test_dropout_drops_a_256th_part_as_often_as_told_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    dropout, x = Dropout(0.1), torch.ones(80_000)
    dropped = dropout(x)
    share = 26 / 256  # the nearest to 0.1
    deviation = (share * (1 - share) / len(x)) ** 0.5
    assert abs(float((dropped == 0).float().mean()) - share) < 4 * deviation
    assert torch.unique(dropped).tolist() == [0.0, pytest.approx(1 / (1 - share))]
    assert torch.equal(dropout.eval()(x), x)


def test_every_byte_of_a_random_number_decides_by_itself() -> None:
    torch.manual_seed(0)
    kept = draw_kept(torch.empty(20_000, 8), 128).float()
    limit = 5 * 20_000**-0.5
    assert (kept.mean(0) - 0.5).abs().max() < limit
    assert (torch.corrcoef(kept.T) - torch.eye(8)).abs().max() < limit
    assert draw_kept(torch.empty(3, 3), 0).tolist() == [[0, 0, 0]] * 3
