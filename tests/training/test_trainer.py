"""The trainer on real bars: what each policy does to training, and what the epochs' figures mean."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tft_exp.compose import compose_config
from tft_exp.config import BatchConfig, Config, Gradients, OptimizerConfig, Precision, Schedule, TrainerConfig
from tft_exp.data.dataset import Dataset, load_dataset
from tft_exp.data.runs import Runs, RunSource, evaluation_runs, run_source
from tft_exp.errors import TrainingError
from tft_exp.memory.audit import Verdict
from tft_exp.memory.devices import ProcessMemory
from tft_exp.memory.policies import POLICIES, OptimizerOwner
from tft_exp.memory.timeline import Timeline
from tft_exp.memory.virtual import VirtualMemory
from tft_exp.model.tft import TemporalFusionTransformer
from tft_exp.training.assembly import build_model
from tft_exp.training.checkpoint import load_weights, save_weights
from tft_exp.training.naive import naive_qualities
from tft_exp.training.optimizers import build_optimizer
from tft_exp.training.trainer import EpochResult, StateAudit, Trainer, spread_over


@pytest.fixture(scope="module")
def config() -> Config:
    return compose_config(["model=tiny", "device=cpu"])


@pytest.fixture(scope="module")
def dataset(config: Config) -> Dataset:
    return load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)


def trainer_for(
    config: Config,
    dataset: Dataset,
    policy: str = "keep",
    optimizer: OptimizerConfig | None = None,
    batch: BatchConfig | None = None,
    gradients: Gradients = Gradients.after_step,
    rewarmup_steps: int = 0,
    **settings: object,
) -> Trainer:
    torch.manual_seed(0)
    model = build_model(config.model, dataset.sizes, on_cpu=True)
    chosen = optimizer or config.optimizer
    trainer = TrainerConfig(**{"max_epochs": 3, "limit_train_batches": 3, **settings})  # type: ignore[arg-type]
    return Trainer(
        model=model,
        quantiles=torch.tensor(config.model.quantiles),
        owner=OptimizerOwner(lambda: build_optimizer(chosen, model)),
        policy=POLICIES[policy],
        timeline=Timeline(ProcessMemory()),
        config=trainer,
        batch=batch or BatchConfig(train=16, validation=64),
        optimizer=chosen,
        seed=0,
        gradients=gradients,
        rewarmup_steps=rewarmup_steps,
    )


def fit(trainer: Trainer, dataset: Dataset) -> list[EpochResult]:
    torch.manual_seed(1)  # dropout's own numbers: two runs are compared, and the first one must not use the second's up
    train, validation = dataset.rows.windows["train"], dataset.rows.windows["validation"][:96]
    return list(trainer.epochs(dataset.rows.gather, alone(train), [Runs(validation)]))


def alone(windows: Tensor) -> RunSource:
    """Every window as a run of its own."""
    return run_source(windows, np.array([len(windows)]), 1, 1)


def weights(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("policy", ["offload", "clear_cache", "cpu_validation", "stash"])
def test_policies_that_keep_the_state_train_bit_for_bit_as_keep(policy: str, config: Config, dataset: Dataset) -> None:
    kept, other = trainer_for(config, dataset, "keep"), trainer_for(config, dataset, policy)
    one, two = fit(kept, dataset), fit(other, dataset)
    assert same_bits(weights(kept), weights(other))
    assert [result.train_loss for result in one] == [result.train_loss for result in two]
    assert [result.validation for result in one] == [result.validation for result in two]


@pytest.mark.parametrize("policy", ["keep", "offload", "cpu_validation"])
def test_a_virtual_card_changes_no_bit(policy: str, config: Config, dataset: Dataset) -> None:
    plain = trainer_for(config, dataset, "keep")
    one = fit(plain, dataset)
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        placed = replace(dataset, rows=dataset.rows.moved(memory.put))
        virtual = trainer_for(config, dataset, policy)
        virtual.timeline = Timeline(memory)
        two = fit(virtual, placed)
        assert same_bits(weights(plain), weights(virtual))
    assert [result.validation for result in one] == [result.validation for result in two]
    peaks = {record.phase: record.peak.allocated_mib for record in two[1].phases}
    assert peaks["train"] > 1
    assert (peaks["validation"] < 0.5 * peaks["train"]) == (policy == "cpu_validation")


def test_recreate_is_keep_until_its_first_rebuild(config: Config, dataset: Dataset) -> None:
    kept, recreated = trainer_for(config, dataset, "keep", max_epochs=1), trainer_for(config, dataset, "recreate", max_epochs=1)
    fit(kept, dataset), fit(recreated, dataset)
    assert same_bits(weights(kept), weights(recreated))
    assert len(recreated.owner.current.state) == 0
    kept, recreated = trainer_for(config, dataset, "keep", max_epochs=2), trainer_for(config, dataset, "recreate", max_epochs=2)
    fit(kept, dataset), fit(recreated, dataset)
    assert not same_bits(weights(kept), weights(recreated))


def test_the_learning_rate_goes_on_over_a_rebuild(config: Config, dataset: Dataset) -> None:
    settings = {"schedule": Schedule.cosine, "warmup_steps": 2}
    kept = fit(trainer_for(config, dataset, "keep", **settings), dataset)
    recreated = trainer_for(config, dataset, "recreate", **settings)
    used = [result.learning_rate for result in fit(recreated, dataset)]
    assert used == [result.learning_rate for result in kept]
    assert len(set(used)) == 3
    assert recreated.step == 9


@pytest.mark.parametrize(("policy", "held"), [("keep", True), ("stash", True), ("offload", True), ("recreate", False)])
def test_state_is_measured_where_it_is(policy: str, held: bool, config: Config, dataset: Dataset) -> None:
    trainer = trainer_for(config, dataset, policy)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    for result in fit(trainer, dataset):
        assert result.audit.state_mib * 2**20 == pytest.approx(8 * parameters, rel=0.01)
        assert result.audit.in_validation_mib == (result.audit.state_mib if held else 0)
        assert result.audit.finding.verdict.stands == (policy != "stash")


@pytest.mark.parametrize("policy", ["keep", "offload_always", "recreate"])
def test_stepping_in_backward_trains_bit_for_bit_as_after_it(policy: str, config: Config, dataset: Dataset) -> None:
    trained = []
    for gradients in Gradients:
        trainer = trainer_for(config, dataset, policy, gradient_clip_norm=None, gradients=gradients)
        fit(trainer, dataset)
        assert trainer.step == 9
        assert all(parameter.grad is None for parameter in trainer.model.parameters())
        trained.append(weights(trainer))
    assert same_bits(*trained)


def test_a_new_optimizer_warms_up_again_and_the_first_does_not(config: Config, dataset: Dataset) -> None:
    trainer = trainer_for(config, dataset, "recreate", max_epochs=2, limit_train_batches=4, rewarmup_steps=2)
    rates: list[float] = []
    trainer.on_batch = lambda phase: rates.append(trainer.learning_rate) if phase == "train" else None
    fit(trainer, dataset)
    base = config.optimizer.learning_rate
    assert rates == pytest.approx([base] * 4 + [base / 3, base * 2 / 3, base, base])


@pytest.mark.parametrize("policy", ["keep", "clear_cache", "clear_cache_every_batch"])
def test_clearing_after_every_batch_leaves_no_unused_segment_behind_one(policy: str, config: Config, dataset: Dataset) -> None:
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        placed = replace(dataset, rows=dataset.rows.moved(memory.put))
        trainer = trainer_for(config, dataset, policy, max_epochs=1)
        trainer.timeline = Timeline(memory)
        unused: dict[str, list[float]] = {"train": [], "validation": []}

        def measure(phase: str) -> None:
            now = memory.now()
            assert now.reserved_mib is not None
            before = now.reserved_mib
            memory.allocator.flush()
            unused[phase].append(before - memory.allocator.reserved / 2**20)

        trainer.on_batch = measure
        fit(trainer, placed)
    assert len(unused["train"]) == 3
    for phase in unused:
        assert all((mib == 0) == (policy == "clear_cache_every_batch") for mib in unused[phase]), unused


def test_what_an_audit_raises_ends_the_training_before_validation(config: Config, dataset: Dataset) -> None:
    trainer = trainer_for(config, dataset, "stash")

    def refuse(audit: StateAudit) -> None:
        assert audit.finding.verdict is Verdict.nothing_freed
        assert "local 'dropped'" in audit.finding.holders[0]
        raise ArithmeticError

    trainer.on_audit = refuse
    with pytest.raises(ArithmeticError):
        fit(trainer, dataset)
    assert [record.phase for record in trainer.timeline.records] == ["train", "before_validation"]


def test_accumulation_equals_one_large_batch(config: Config, dataset: Dataset) -> None:
    """The last step of the epoch has fewer windows than the others, in uneven parts; dropout is off to compare."""
    windows = dataset.rows.windows["train"][:100]
    sgd = replace(compose_config(["optimizer=sgd"]).optimizer, learning_rate=0.1, momentum=0.0)
    calm = compose_config(["model=tiny", "model.dropout=0"])
    trained = []
    for batch in (BatchConfig(train=48, accumulate=1), BatchConfig(train=16, accumulate=3)):
        trainer = trainer_for(calm, dataset, optimizer=sgd, batch=batch, limit_train_batches=None, gradient_clip_norm=0.05)
        trainer.model.double()
        double = dataset_in_double(dataset)
        trainer.train(double.rows.gather, alone(windows), total_steps=3)
        assert trainer.step == 3
        trained.append(weights(trainer))
    for one, other in zip(*trained, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def dataset_in_double(dataset: Dataset) -> Dataset:
    names = ("static_reals", "known_reals", "observed_reals", "target")
    tensors = replace(dataset.rows.tensors, **{name: getattr(dataset.rows.tensors, name).double() for name in names})
    return replace(dataset, rows=replace(dataset.rows, tensors=tensors))


def test_early_stopping_waits_for_its_patience(config: Config, dataset: Dataset) -> None:
    # With a learning rate that moves no weight, no epoch after the first improves.
    still = replace(config.optimizer, learning_rate=1e-30, weight_decay=0.0)
    results = fit(trainer_for(config, dataset, optimizer=still, max_epochs=20, early_stopping_patience=3), dataset)
    assert [result.improved for result in results] == [True, False, False, False]


def test_a_loss_that_is_no_number_is_named_with_its_place(config: Config, dataset: Dataset) -> None:
    trainer = trainer_for(config, dataset)
    with torch.no_grad():
        next(iter(trainer.model.parameters())).fill_(math.nan)
    with pytest.raises(TrainingError) as caught:
        fit(trainer, dataset)
    assert "training loss became nan in epoch 1, batch 1 of 3" in str(caught.value)
    assert "learning_rate" in str(caught.value)


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_trains(precision: Precision, config: Config, dataset: Dataset) -> None:
    trainer = trainer_for(config, dataset, precision=precision, max_epochs=2)
    before = weights(trainer)
    results = fit(trainer, dataset)
    assert all(math.isfinite(result.train_loss) and math.isfinite(result.validation.loss) for result in results)
    assert not same_bits(before, weights(trainer))


def test_training_learns_what_can_be_learnt() -> None:
    """Volume has a memory: on the windows it trains on, the model must beat the best forecast that needs none."""
    config = compose_config(["model=tiny", "data.target=log_volume"])
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    windows = dataset.rows.windows["train"]
    naive = naive_qualities(dataset.rows, windows, torch.tensor(config.model.quantiles), None)
    trainer = trainer_for(config, dataset, max_epochs=6, limit_train_batches=50, batch=BatchConfig(train=32, validation=256))
    results = list(trainer.epochs(dataset.rows.gather, alone(windows), [Runs(windows)]))
    assert results[-1].validation.loss < min(quality.loss for quality in naive.values())
    assert results[-1].train_loss < results[0].train_loss
    assert results[0].windows == 50 * 32
    assert [record.phase for record in results[0].phases] == ["train", "before_validation", "validation", "after_validation"]
    assert results[0].seconds == pytest.approx(sum(record.seconds for record in results[0].phases))


def test_validation_loss_is_of_all_windows_whatever_the_batch_and_what_it_shares(config: Config, dataset: Dataset) -> None:
    windows = dataset.rows.windows["validation"][:100]
    stretches = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(windows) != 1) + 1, [len(windows)]]))
    qualities = []
    for size in (7, 100):
        for runs in ([Runs(windows)], evaluation_runs(windows, stretches, size, dataset.rows.lookback)):
            trainer = trainer_for(config, dataset, batch=BatchConfig(validation=size))
            qualities.append(trainer.evaluate(dataset.rows.gather, runs, lambda tensor: tensor))
    for quality in qualities[1:]:
        assert quality.loss == pytest.approx(qualities[0].loss, rel=1e-5)
        for quantile, risk in quality.q_risk.items():
            assert risk == pytest.approx(qualities[0].q_risk[quantile], rel=1e-5)


def test_spread_over_takes_its_share_of_the_whole(dataset: Dataset) -> None:
    windows = torch.arange(200).reshape(100, 2)
    assert spread_over(windows, None) is windows
    assert spread_over(windows, 100) is windows
    some = spread_over(windows, 10)
    assert len(some) == len(set(some[:, 0].tolist())) == 10
    assert (some[0, 0], some[-1, 0]) == (0, 198)


def test_weights_on_disk_are_the_weights(config: Config, dataset: Dataset, tmp_path) -> None:  # type: ignore[no-untyped-def]
    one, other = build_model(config.model, dataset.sizes, on_cpu=True), build_model(config.model, dataset.sizes, on_cpu=True)
    save_weights(one, tmp_path)
    load_weights(other, tmp_path)
    assert same_bits(list(one.parameters()), list(other.parameters()))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    wider = TemporalFusionTransformer(
        dataset.sizes, hidden_size=24, attention_heads=2, lstm_layers=1, dropout=0.0, lookback=24, horizon=6, quantiles=[0.1, 0.5, 0.9]
    )
    with pytest.raises(RuntimeError):
        load_weights(wider, tmp_path)


def test_naive_forecasts_against_a_plain_loop(dataset: Dataset) -> None:
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    windows = dataset.rows.windows["validation"][:40]
    train = dataset.rows.windows["train"]
    named = naive_qualities(dataset.rows, windows, quantiles, season_length=4)
    assert set(named) == {"climatology", "persistence", "seasonal"}
    for name, season in (("persistence", 1), ("seasonal", 4)):

        def split(window: Tensor, season: int = season) -> tuple[list[float], list[float]]:
            first = int(window)
            past = dataset.rows.tensors.target[first : first + dataset.rows.lookback].tolist()
            future = dataset.rows.tensors.target[
                first + dataset.rows.lookback : first + dataset.rows.lookback + dataset.rows.horizon
            ].tolist()
            anchors = [past[len(past) - season + step % season] for step in range(dataset.rows.horizon)]
            return anchors, future

        sample = train[:: max(1, len(train) // 20_000)]
        distances = torch.tensor([[f - a for a, f in zip(*split(window), strict=True)] for window in sample])
        total = 0.0
        for window in windows:
            for step, (anchor, future) in enumerate(zip(*split(window), strict=True)):
                for q in quantiles:
                    error = future - (anchor + float(torch.quantile(distances[:, step], q)))
                    total += max(float(q) * error, (float(q) - 1) * error)
        assert named[name].loss == pytest.approx(total / (len(windows) * dataset.rows.horizon * 3), rel=1e-4)
