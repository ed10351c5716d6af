"""The batched Temporal Fusion Transformer against a plain loop written from the paper, and its promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.loop_reference import forecast_one
from tft_exp.model.inputs import Inputs, InputSizes
from tft_exp.model.quantiles import quantile_loss
from tft_exp.model.tft import TemporalFusionTransformer

LOOKBACK, HORIZON, BATCH = 5, 3, 2
FULL = InputSizes(2, (3,), 2, (4, 2), 3, (5,))
MANY = InputSizes(known_cardinalities=(50,), observed_reals=1, observed_cardinalities=(3, 60))
ROLES = {
    "everything": FULL,
    "no static": InputSizes(known_reals=2, known_cardinalities=(4,), observed_reals=3),
    "no known": InputSizes(static_cardinalities=(3,), observed_reals=3, observed_cardinalities=(5,)),
    "no observed": InputSizes(static_reals=1, known_reals=2),
    "observed alone": InputSizes(observed_reals=1),
    "known categoricals alone": InputSizes(known_cardinalities=(4, 2)),
}


def build(
    sizes: InputSizes, *, layers: int = 2, quantiles: int = 3, dropout: float = 0.0, hidden: int = 8, **more: Any
) -> TemporalFusionTransformer:
    torch.manual_seed(0)
    levels = [(i + 1) / (quantiles + 1) for i in range(quantiles)]
    return TemporalFusionTransformer(
        sizes,
        hidden_size=hidden,
        **{"attention_heads": 2} | more,
        lstm_layers=layers,
        dropout=dropout,
        lookback=LOOKBACK,
        horizon=HORIZON,
        quantiles=levels,
    )


def draw(sizes: InputSizes, batch: int = BATCH, seed: int = 1, dtype: torch.dtype = torch.float64, extra: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def reals(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def codes(cardinalities: tuple[int, ...], *shape: int) -> Tensor:
        columns = [torch.randint(c, shape, generator=generator) for c in cardinalities]
        return torch.stack(columns, dim=-1) if columns else torch.zeros(*shape, 0, dtype=torch.int64)

    steps, past = LOOKBACK + HORIZON + extra, LOOKBACK + extra
    return Inputs(
        reals(batch, sizes.static_reals),
        codes(sizes.static_cardinalities, batch),
        reals(batch, steps, sizes.known_reals),
        codes(sizes.known_cardinalities, batch, steps),
        reals(batch, past, sizes.observed_reals),
        codes(sizes.observed_cardinalities, batch, past),
    )


@pytest.mark.parametrize("sizes", ROLES.values(), ids=ROLES.keys())
@pytest.mark.parametrize(("layers", "heads"), [(1, 2), (2, 4)])
def test_values_weights_and_every_gradient_equal_the_plain_loop(sizes: InputSizes, layers: int, heads: int) -> None:
    """With fewer heads times forecast rows than rows, and more."""
    model = build(sizes, layers=layers, attention_heads=heads).double()
    inputs = draw(sizes)
    out = model.explain(inputs)
    plain = [torch.stack(parts) for parts in zip(*(forecast_one(model, inputs, b) for b in range(BATCH)), strict=True)]
    for batched, looped in zip(out, plain, strict=True):
        torch.testing.assert_close(batched, looped, rtol=1e-5, atol=1e-5, check_dtype=False)

    weights = torch.randn(BATCH, HORIZON, 3, dtype=torch.float64)
    batched_gradients = torch.autograd.grad((model(inputs) * weights).sum(), list(model.parameters()), allow_unused=True)
    looped_gradients = torch.autograd.grad((plain[0] * weights).sum(), list(model.parameters()), allow_unused=True)
    for (name, parameter), one, other in zip(model.named_parameters(), batched_gradients, looped_gradients, strict=True):
        if other is None:
            assert one is None or one.abs().max() == 0, name
        else:
            assert parameter.shape == other.shape
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=lambda message, name=name: f"{name}: {message}")


def test_a_forecast_does_not_see_its_own_future() -> None:
    model, inputs = build(FULL).double(), draw(FULL)
    before = model(inputs)
    for step in range(HORIZON):
        known = inputs.known_reals.clone()
        known[:, LOOKBACK + step] += 3.0
        changed = (model(inputs._replace(known_reals=known)) - before).abs().amax(dim=(0, 2))
        assert torch.all(changed[:step] == 0)
        assert torch.all(changed[step:] > 0)


@pytest.mark.parametrize("bar", [0, LOOKBACK - 1])
def test_every_step_of_a_forecast_sees_every_observed_bar(bar: int) -> None:
    model, inputs = build(FULL).double(), draw(FULL)
    observed = inputs.observed_reals.clone()
    observed[:, bar] += 3.0
    changed = (model(inputs._replace(observed_reals=observed)) - model(inputs)).abs().amax(dim=(0, 2))
    assert torch.all(changed > 0)


def test_every_input_matters() -> None:
    model, inputs = build(FULL).double(), draw(FULL)
    before = model(inputs)
    for name, tensor in list(inputs._asdict().items())[:-1]:
        other = (tensor + 1) % 2 if tensor.dtype == torch.int64 else tensor + 1.0
        assert not torch.allclose(model(inputs._replace(**{name: other})), before), name


def test_windows_of_a_batch_do_not_touch_each_other() -> None:
    model, inputs = build(FULL).double().eval(), draw(FULL, batch=4)
    alone = torch.cat([model(Inputs(*(tensor[b : b + 1] for tensor in inputs[:-1]))) for b in range(4)])
    torch.testing.assert_close(model(inputs), alone)


def as_windows(inputs: Inputs) -> Inputs:
    """The windows of runs, each as a run of its own."""
    extra = inputs.known_reals.shape[1] - LOOKBACK - HORIZON
    starts = range(0, extra + 1, inputs.stride)

    def cut(rows: Tensor, length: int) -> Tensor:
        return torch.stack([run[start : start + length] for run in rows for start in starts])

    return Inputs(
        *(static.repeat_interleave(len(starts), dim=0) for static in inputs[:2]),
        *(cut(known, LOOKBACK + HORIZON) for known in inputs[2:4]),
        *(cut(observed, LOOKBACK) for observed in inputs[4:6]),
    )


@pytest.mark.parametrize("sizes", ROLES.values(), ids=ROLES.keys())
@pytest.mark.parametrize(("windows", "stride"), [(1, 1), (4, 1), (3, 3), (2, 7)])
def test_windows_that_share_rows_are_forecast_as_if_alone(sizes: InputSizes, windows: int, stride: int) -> None:
    """Forecasts, weights, attention and every gradient, whether strides overlap the lookback or leave rows out."""
    model = build(sizes).double()
    runs = draw(sizes, batch=3, extra=(windows - 1) * stride)._replace(stride=stride)
    alone = as_windows(runs)
    assert alone.known_reals.shape[0] == 3 * windows
    shared, apart = model.explain(runs), model.explain(alone)
    for one, other in zip(shared, apart, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(
        *(torch.autograd.grad(out.quantiles.square().sum(), list(model.parameters()), allow_unused=True) for out in (shared, apart)),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sizes", [*ROLES.values(), MANY], ids=[*ROLES.keys(), "many categories"])
@pytest.mark.parametrize("block_elements", [40, 300, 10_000])
@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_streamed_is_the_same(sizes: InputSizes, block_elements: int, batch: int) -> None:
    """Blocks of some rows of a variable, of some variables, and of all; more and fewer rows than a hidden layer has elements, and
    than there are categories."""
    kept, streamed = build(sizes).double(), build(sizes, block_elements=block_elements, recompute=block_elements == 300).double()
    inputs = draw(sizes, batch=batch, extra=4)
    results = []
    for model in (kept, streamed):
        out = model.explain(inputs)
        gradients = torch.autograd.grad(out.quantiles.square().sum(), list(model.parameters()), allow_unused=True)
        results.append([*out, *gradients])
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(kept.eval()(inputs), streamed.eval()(inputs))


@pytest.mark.parametrize("block_elements", [40, 10_000])
def test_gradients_of_what_is_streamed_are_those_of_its_own_masks(block_elements: int) -> None:
    """Along a random direction, against the difference of two forecasts with the same dropout."""
    model = build(FULL, dropout=0.3, block_elements=block_elements).double()
    inputs, parameters = draw(FULL, batch=3, extra=4), [*model.parameters()]
    direction = [torch.randn_like(parameter) for parameter in parameters]

    def moved(step: float) -> Tensor:
        with torch.no_grad():
            for parameter, along in zip(parameters, direction, strict=True):
                parameter.add_(along, alpha=step)
        torch.manual_seed(5)
        return model(inputs).square().sum()

    gradients = torch.autograd.grad(moved(0.0), parameters)
    slope = sum(float((gradient * along).sum()) for gradient, along in zip(gradients, direction, strict=True))
    step = 1e-6
    with torch.no_grad():
        difference = float(moved(step) - moved(-2 * step)) / (2 * step)
    assert slope == pytest.approx(difference, rel=1e-5)
    torch.manual_seed(6)
    assert not torch.allclose(model(inputs), model(inputs)), "nothing was dropped"


def test_what_is_streamed_in_bfloat16_is_near_float32() -> None:
    inputs = draw(FULL, batch=3, extra=4, dtype=torch.float32)
    kept, streamed = build(FULL, hidden=16), build(FULL, hidden=16, block_elements=100)
    exact = kept(inputs)
    for model in (kept, streamed):
        with torch.autocast("cpu", torch.bfloat16):
            forecast = model(inputs)
        assert (forecast - exact).abs().max() < 0.05 * exact.abs().max()
        forecast.sum().backward()
    for (name, one), other in zip(kept.named_parameters(), streamed.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert (one.grad - other.grad).norm() <= 0.1 * one.grad.norm() + 1e-3, name


def test_weights_and_attention_are_shares() -> None:
    out = build(FULL).explain(draw(FULL, dtype=torch.float32))
    for weights, variables in ((out.static_weights, 3), (out.past_weights, 8), (out.future_weights, 4)):
        assert weights.shape[-1] == variables
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    torch.testing.assert_close(out.attention.sum(-1), torch.ones(BATCH, HORIZON))
    for step in range(HORIZON):
        assert torch.all(out.attention[:, step, LOOKBACK + step + 1 :] == 0)
        assert torch.all(out.attention[:, step, : LOOKBACK + step + 1] > 0)


@pytest.mark.parametrize("quantiles", [1, 2, 3, 9])
def test_quantiles_never_cross(quantiles: int) -> None:
    model = build(FULL, quantiles=quantiles)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(50.0)
    inputs = draw(FULL, batch=64, dtype=torch.float32)
    forecast = model(inputs._replace(observed_reals=inputs.observed_reals * 100))
    assert forecast.shape == (64, HORIZON, quantiles)
    assert torch.all(forecast.diff(dim=-1) >= 0)


def test_a_model_without_past_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one known or observed"):
        build(InputSizes(static_reals=2))


def test_bfloat16_autocast_trains_to_finite_values() -> None:
    # Without dropout, so that what differs from float32 is the precision.
    model, inputs = build(FULL), draw(FULL, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        forecast = model(inputs)
    assert forecast.dtype == torch.float32
    quantile_loss(forecast, torch.zeros(BATCH, HORIZON), torch.tensor([0.25, 0.5, 0.75])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    torch.testing.assert_close(forecast, model(inputs), rtol=0.0, atol=0.03)


def test_dropout_is_for_training_alone() -> None:
    model, inputs = build(FULL, dropout=0.5), draw(FULL, dtype=torch.float32)
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
    model.train()
    assert not torch.equal(model(inputs), model(inputs))


def test_a_state_dict_brings_the_forecast_back() -> None:
    trained, fresh, inputs = build(FULL).double(), build(FULL).double(), draw(FULL)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(fresh(inputs), trained(inputs))
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh(inputs), trained(inputs))


def test_it_learns_what_it_is_shown() -> None:
    """The target is a known input times a static one: only a model that brings both together gets it right."""
    sizes = InputSizes(static_reals=1, known_reals=1, observed_reals=1)
    model = build(sizes, hidden=16, layers=1)
    inputs = draw(sizes, batch=64, dtype=torch.float32)
    target = inputs.known_reals[:, LOOKBACK:, 0] * inputs.static_reals
    levels = torch.tensor([0.25, 0.5, 0.75])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(200):
        loss = quantile_loss(model(inputs), target, levels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(("chosen", "widths"), [(None, [1, 8, 2]), (3, [3, 3, 3])])
def test_a_weights_network_is_as_wide_as_there_are_variables_or_as_chosen(chosen: int | None, widths: list[int]) -> None:
    """One static, ten past and two future variables, hidden size 8."""
    sizes = InputSizes(static_cardinalities=(3,), known_reals=2, observed_reals=8)
    model = build(sizes, selection_size=chosen)
    networks = [selection.weights for selection in (model.static_selection, model.past_selection, model.future_selection) if selection]
    assert [network.second.out_features for network in networks] == widths
    streamed = build(sizes, selection_size=chosen, block_elements=40)
    torch.testing.assert_close(model.eval()(draw(sizes, dtype=torch.float32)), streamed.eval()(draw(sizes, dtype=torch.float32)))


def test_parameters_of_the_reported_model() -> None:
    """Hidden 256 with 225 inputs: the 94.65 million parameters that the report's figures point to."""
    sizes = InputSizes(4, (1,), 10, (), 210, ())
    with torch.device("meta"):
        model = TemporalFusionTransformer(
            sizes,
            hidden_size=256,
            attention_heads=8,
            lstm_layers=2,
            dropout=0.1,
            lookback=60,
            horizon=10,
            quantiles=[0.1, 0.5, 0.9],
            selection_size=256,
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(94.65e6, rel=1e-3)
