"""What torch.compile makes of the model: the same values and gradients, or a warning and the model as it was."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.model.test_tft import build, draw
from tft_exp.config import Compile, Config, DeviceConfig, DeviceKind, ModelConfig
from tft_exp.errors import UserError
from tft_exp.model.inputs import Inputs, InputSizes
from tft_exp.model.tft import TemporalFusionTransformer
from tft_exp.training.compiling import compile_regions, compile_seconds

SIZES = InputSizes(known_reals=2, observed_reals=2)


def gradients(model: TemporalFusionTransformer, inputs: Inputs) -> dict[str, Tensor]:
    model.zero_grad()
    forecast = model(inputs)
    forecast.square().sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"forecast": forecast.detach()} | found


def test_compiled_regions_have_the_values_and_gradients_of_the_plain_model() -> None:
    inputs = draw(SIZES, dtype=torch.float32)
    model = build(SIZES)
    plain = gradients(model, inputs)
    before = compile_seconds()
    compile_regions(model, Compile.regions, torch.device("cpu"))
    compiled = gradients(model, inputs)
    assert compile_seconds() > before
    assert compiled.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_without_a_compiler_the_model_runs_as_it_was_and_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    inputs = draw(SIZES, dtype=torch.float32)
    model = build(SIZES, hidden=4)
    plain = gradients(model, inputs)
    compile_regions(model, Compile.regions, torch.device("cpu"))
    with caplog.at_level(logging.WARNING, "tft_exp"):
        uncompiled = gradients(model, inputs)
    assert "model.compile: _decode runs uncompiled: " in caplog.text
    for name, value in plain.items():
        assert torch.equal(uncompiled[name], value), name


def test_cuda_graphs_elsewhere_than_on_cuda_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = build(SIZES)
    with caplog.at_level(logging.WARNING, "tft_exp"):
        compile_regions(model, Compile.cuda_graphs, torch.device("cpu"))
    assert "model.compile=cuda_graphs is for CUDA" in caplog.text
    assert not model._forward_pre_hooks


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_cuda_graphs_have_the_values_and_gradients_of_the_plain_model_step_after_step() -> None:
    device = torch.device("cuda")
    model = build(SIZES).to(device)
    batches = [draw(SIZES, dtype=torch.float32, seed=seed).moved(lambda tensor: tensor.to(device)) for seed in range(5)]
    plain = [gradients(model, inputs) for inputs in batches]
    compile_regions(model, Compile.cuda_graphs, device)
    for inputs, expected in zip(batches, plain, strict=True):
        found = {name: value.clone() for name, value in gradients(model, inputs).items()}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def test_a_virtual_card_refuses_compiled_operations_because_it_could_not_follow_them() -> None:
    virtual = DeviceConfig(kind=DeviceKind.virtual, capacity_mib=4096)
    with pytest.raises(UserError, match=r"model\.compile"):
        Config(device=virtual, model=replace(ModelConfig(), compile=Compile.regions))
