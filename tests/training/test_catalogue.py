"""The catalogue of optimizer states and gradients: bytes as declared, resumed as saved, and free to be combined."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tft_exp.compose import compose_config, conf_dir
from tft_exp.config import Config, OptimizerConfig
from tft_exp.data.dataset import load_dataset
from tft_exp.data.runs import Runs
from tft_exp.errors import ConfigError
from tft_exp.memory.audit import Witness
from tft_exp.memory.devices import DeviceMemory, ProcessMemory
from tft_exp.memory.policies import POLICIES, OptimizerOwner, step_in_backward
from tft_exp.memory.tensors import is_wrapper, state_tensors
from tft_exp.memory.virtual import VirtualMemory
from tft_exp.training.assembly import build_model
from tft_exp.training.lean_optimizers import BFloat16AdamW, Muon, orthogonalised, round_stochastically
from tft_exp.training.optimizers import build_optimizer, set_learning_rate

OPTIONS = sorted(path.stem for path in (conf_dir() / "optimizer").glob("*.yaml"))
# It steps all its parameters at once, and the schema refuses it elsewhere.
BY_PARAMETER = [option for option in OPTIONS if option != "galore"]


def header(group: str, option: str) -> str:
    lines = (conf_dir() / group / f"{option}.yaml").read_text().splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


@pytest.fixture(scope="module")
def large() -> tuple[Config, nn.Module, Tensor]:
    """A TFT of ten million parameters with gradients, as one step would find them."""
    config = compose_config(["model=large", "model.lookback=8", "model.horizon=2"])
    dataset = load_dataset(config.data, config.features, lookback=8, horizon=2)
    torch.manual_seed(0)
    model = build_model(config.model, dataset.sizes, on_cpu=True)
    model(dataset.rows.gather(Runs(dataset.rows.windows["train"][:1])).inputs).sum().backward()
    return config, model, dataset.rows.windows["train"]


@pytest.mark.parametrize("option", OPTIONS)
def test_state_takes_the_bytes_that_its_header_declares(option: str, large: tuple[Config, nn.Module, Tensor]) -> None:
    _, model, _ = large
    declared = re.search(r"([\d.]+) bytes a parameter", header("optimizer", option))
    assert declared is not None, "the header declares no bytes"
    optimizer = build_optimizer(compose_config([f"optimizer={option}"]).optimizer, model)
    optimizer.step()
    count = sum(parameter.numel() for parameter in model.parameters())
    measured = Witness(state_tensors(optimizer), ProcessMemory()).total_mib * 2**20 / count
    assert measured == pytest.approx(float(declared[1]), rel=0.01, abs=0.005)


class Shapes(nn.Module):
    """Every kind of parameter that a TFT has: matrices, stacked matrices, vectors, a table; some above 4,096 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 64)
        self.first = nn.Linear(64, 96)
        self.stack = nn.Parameter(torch.randn(3, 96, 64) / 10)
        self.bias = nn.Parameter(torch.zeros(3, 1, 64))
        self.last = nn.Linear(64, 1)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(self.table(codes)))
        return self.last(torch.tanh(torch.baddbmm(self.bias, hidden.expand(3, -1, -1), self.stack)))


class Training:
    """Deterministic steps on `Shapes` under a policy."""

    def __init__(self, option: str, policy: str = "keep", memory: DeviceMemory | None = None, in_backward: bool = False) -> None:
        self.memory, self.policy = memory or ProcessMemory(), POLICIES[policy]
        config = compose_config([f"optimizer={option}"]).optimizer
        torch.manual_seed(0)
        self.model = Shapes()._apply(self.memory.put)
        self.memory.observe(self.model)
        self.owner = OptimizerOwner(lambda: build_optimizer(config, self.model))
        self.in_backward = in_backward
        if in_backward:
            step_in_backward(self.model, lambda some: self.policy.step(self.owner.current, self.memory, some))
        self.taken = 0

    def steps(self, count: int) -> Training:
        for _ in range(count):
            set_learning_rate(self.owner.current, 0.01 / (1 + self.taken))
            codes = torch.randint(0, 7, (16,), generator=torch.Generator().manual_seed(self.taken))
            (self.model(self.memory.put(codes)) - 1).square().mean().backward()
            if not self.in_backward:
                self.policy.step(self.owner.current, self.memory, list(self.model.parameters()))
                self.owner.current.zero_grad()
            self.taken += 1
        return self

    def validate(self) -> Training:
        with self.policy.around_validation(self.owner, self.model, self.memory) as move, torch.no_grad():
            self.model(move(torch.arange(7)))
        return self

    def weights(self) -> list[Tensor]:
        with torch.utils._python_dispatch._disable_current_modes():
            return [parameter.detach().clone() for parameter in self.model.parameters()]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_optimizer_learns(option: str) -> None:
    training = Training(option)
    before = (training.model(torch.arange(7)) - 1).square().mean()
    training.steps(30)
    assert (training.model(torch.arange(7)) - 1).square().mean() < before


@pytest.mark.parametrize("option", OPTIONS)
def test_saved_and_resumed_state_goes_on_bit_for_bit(option: str) -> None:
    straight = Training(option).steps(6)
    first = Training(option).steps(3)
    saved = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "optimizer": first.owner.current.state_dict()}, saved)
    resumed = Training(option)
    saved.seek(0)
    with safe_globals(option):
        loaded = torch.load(saved, weights_only=True)
    resumed.model.load_state_dict(loaded["model"])
    resumed.owner.current.load_state_dict(loaded["optimizer"])
    # In the format that it was saved in, not in the parameters' own.
    kept, again = ([(t.dtype, is_wrapper(t), t.shape) for t in state_tensors(run.owner.current)] for run in (first, resumed))
    assert kept == again
    resumed.taken = 3
    assert same_bits(straight.weights(), resumed.steps(3).weights())


def safe_globals(option: str) -> torch.serialization.safe_globals:
    """What a state holds beside tensors: GaLore its projection, which is an object."""
    if option != "galore":
        return torch.serialization.safe_globals([])
    from pytorch_optimizer.optimizer.utils.galore import GaLoreProjector

    return torch.serialization.safe_globals([GaLoreProjector])


RESIDENCIES = [(option, policy) for option in OPTIONS for policy in ("offload", "cpu_validation")]


@pytest.mark.parametrize(("option", "policy"), [*RESIDENCIES, *((option, "offload_always") for option in BY_PARAMETER)])
def test_every_residency_of_every_state_trains_bit_for_bit_as_keep(option: str, policy: str) -> None:
    kept = Training(option).steps(2).validate().steps(2)
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        other = Training(option, policy, memory).steps(2)
        on_card = Witness(state_tensors(other.owner.current), memory).total_mib
        assert (on_card == 0) == (policy == "offload_always" or option == "sgd")
        with other.policy.around_validation(other.owner, other.model, memory):
            held = Witness(state_tensors(other.owner.current), memory).total_mib
            assert held == (on_card if policy == "cpu_validation" else 0)
        other.steps(2)
        assert same_bits(kept.weights(), other.weights())


@pytest.mark.parametrize("option", BY_PARAMETER)
def test_stepping_in_backward_is_bit_for_bit_stepping_after_it(option: str) -> None:
    after, within = Training(option).steps(3), Training(option, in_backward=True).steps(3)
    if option == "adamw_bf16":  # parameters are numbered in the order of their first step, and so draw other noise
        assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(after.weights(), within.weights(), strict=True))
    else:
        assert same_bits(after.weights(), within.weights())


@pytest.mark.parametrize(("in_backward", "bytes_a_parameter"), [(False, 4.0), (True, 0.0)])
def test_gradients_take_the_bytes_that_their_header_declares(in_backward: bool, bytes_a_parameter: float) -> None:
    option = "in_backward" if in_backward else "after_step"
    assert f"{bytes_a_parameter:.0f} bytes a parameter" in header("gradients", option)
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        torch.manual_seed(0)
        layers = 24
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(layers)))._apply(memory.put)
        memory.observe(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(model, lambda some: POLICIES["keep"].step(optimizer, memory, some))
        memory.reset_peak()
        model(torch.ones(2, 256)).sum().backward()
        count = sum(parameter.numel() for parameter in model.parameters())
        measured = (memory.peak().makeup or {})["gradients"] * 2**20 / count
        # Of one layer at a time, where they go at once.
        assert measured == pytest.approx(bytes_a_parameter, abs=4.0 / layers + 0.01)


def test_bfloat16_moments_follow_float32_ones() -> None:
    lean, plain = Training("adamw_bf16").steps(20), Training("adamw").steps(20)
    for one, other in zip(lean.weights(), plain.weights(), strict=True):
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.999


def test_stochastic_rounding_is_right_on_the_average_where_rounding_to_nearest_is_not() -> None:
    value = torch.full((100_000,), 1.0 + 2**-11)  # a quarter of the way from 1 to the next bfloat16
    rounded = round_stochastically(value, torch.Generator().manual_seed(0)).float()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2**-7}
    assert float(rounded.mean()) == pytest.approx(1.0 + 2**-11, abs=1e-4)
    assert float(value.bfloat16().float().mean()) == 1.0
    negative = round_stochastically(-value, torch.Generator().manual_seed(0)).float()
    assert float(negative.mean()) == pytest.approx(-1.0 - 2**-11, abs=1e-4)


def test_orthogonalised_brings_every_singular_value_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((40, 64), (64, 40), (3, 32, 16)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3


def test_a_stack_of_matrices_is_orthogonalised_matrix_by_matrix() -> None:
    stack = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(orthogonalised(stack), torch.stack([orthogonalised(one) for one in stack]), atol=1e-5)


def test_muon_gives_matrices_momentum_and_the_rest_adams_moments() -> None:
    training = Training("muon").steps(1)
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    kept = {names[id(parameter)]: sorted(state) for parameter, state in training.owner.current.state.items()}
    assert {name for name, keys in kept.items() if keys == ["momentum"]} == {"first.weight", "stack"}
    assert {name for name, keys in kept.items() if "exp_avg_sq" in keys} == {
        "table.weight",
        "first.bias",
        "bias",
        "last.weight",
        "last.bias",
    }


def test_galore_projects_stacks_as_one_matrix_to_its_rank() -> None:
    training = Training("galore").steps(2)
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    shapes = {names[id(p)]: tuple(state["exp_avg"].shape) for p, state in training.owner.current.state.items()}
    assert shapes["stack"] == (3 * 96, 16)
    assert shapes["first.weight"] == (96, 16)
    assert shapes["last.bias"] == (1,)


def test_a_rank_that_projects_nothing_is_refused() -> None:
    config = compose_config(["optimizer=galore", "optimizer.rank=100"]).optimizer
    with pytest.raises(ConfigError, match=r"optimizer\.rank=100 is not allowed"):
        build_optimizer(config, Shapes())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from tft_exp.training.optimizers import require_installed

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchao" else find(name))
    require_installed(OptimizerConfig())
    with pytest.raises(ConfigError, match="torchao") as caught:
        require_installed(compose_config(["optimizer=adamw_8bit"]).optimizer)
    assert "pip install 'tft-exp[lowbit]'" in str(caught.value)


def closures() -> Iterator[Optimizer]:
    parameter = nn.Parameter(torch.ones(2, 2))
    yield BFloat16AdamW([parameter], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    yield Muon([parameter], lr=1e-3, momentum=0.9, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def test_a_closure_is_refused_rather_than_left_out() -> None:
    for optimizer in closures():
        with pytest.raises(ValueError, match="closure"):
            optimizer.step(lambda: 0.0)
