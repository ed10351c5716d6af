"""A configuration and its rows, put together into a trainer on a device: what runs, benchmarks and plans all start from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tft_exp.config import Activations, Config, ModelConfig
from tft_exp.data.rows import WindowedRows
from tft_exp.data.runs import Runs, RunSource, evaluation_runs, run_source
from tft_exp.memory.policies import POLICIES, OptimizerOwner
from tft_exp.memory.tensors import carry_module
from tft_exp.memory.timeline import Timeline
from tft_exp.model.inputs import InputSizes
from tft_exp.model.tft import TemporalFusionTransformer
from tft_exp.training.compiling import compile_regions
from tft_exp.training.optimizers import build_optimizer
from tft_exp.training.trainer import Trainer, spread_over

# Elements of a block of variable selection: on a CPU what a core's cache holds, on a card what keeps it busy and is little memory.
BLOCK_ELEMENTS = {True: 1 << 18, False: 1 << 20}


@dataclass(frozen=True)
class Assembled:
    """A trainer, and on its device the rows, where runs of windows to train on are drawn from, and those to validate."""

    trainer: Trainer
    rows: WindowedRows
    train: RunSource
    validation: list[Runs]


def assemble(config: Config, rows: WindowedRows, sizes: InputSizes, timeline: Timeline) -> Assembled:
    """Seed, bring the rows to the timeline's device, and build model, optimizer and trainer there, as the phase `setup`."""
    memory = timeline.memory
    with timeline.phase("setup"):
        torch.manual_seed(config.seed)
        placed = rows.moved(memory.put)
        batch = config.batch
        train = run_source(placed.windows["train"], placed.stretches["train"], batch.run_length, batch.run_stride)
        validation = runs_of(config, placed, "validation")
        model = build_model(config.model, sizes, on_cpu=not memory.has_host)
        carry_module(model, memory.put)
        compile_regions(model, config.model.compile, memory.device)
        memory.observe(model)
        quantiles = memory.put(torch.tensor(config.model.quantiles))
        owner = OptimizerOwner(lambda: build_optimizer(config.optimizer, model))
    trainer = Trainer(
        model=model,
        quantiles=quantiles,
        owner=owner,
        policy=POLICIES[config.policy.residency.value],
        timeline=timeline,
        config=config.trainer,
        batch=config.batch,
        optimizer=config.optimizer,
        seed=config.seed,
        gradients=config.gradients.release,
        rewarmup_steps=config.policy.rewarmup_steps,
        offload_activations=config.model.activations is Activations.offload,
    )
    return Assembled(trainer, placed, train, validation)


def validation_windows(config: Config, rows: WindowedRows) -> Tensor:
    """The windows that validation runs over, int32 [windows]: all, or as many as its batches are limited to."""
    most = config.trainer.limit_validation_batches
    return spread_over(rows.windows["validation"], most and most * config.batch.validation)


def runs_of(config: Config, rows: WindowedRows, split: str) -> list[Runs]:
    """The windows of validation or test, in runs that share rows where that is wanted and they follow each other."""
    windows = validation_windows(config, rows) if split == "validation" else rows.windows[split]
    if not config.batch.share_rows or len(windows) < len(rows.windows[split]):
        return [Runs(windows)]
    return evaluation_runs(windows, rows.stretches[split], config.batch.validation, rows.lookback)


def build_model(shape: ModelConfig, sizes: InputSizes, *, on_cpu: bool) -> TemporalFusionTransformer:
    return TemporalFusionTransformer(
        sizes,
        hidden_size=shape.hidden_size,
        attention_heads=shape.attention_heads,
        lstm_layers=shape.lstm_layers,
        dropout=shape.dropout,
        lookback=shape.lookback,
        horizon=shape.horizon,
        quantiles=shape.quantiles,
        selection_size=shape.selection_size,
        block_elements=BLOCK_ELEMENTS[on_cpu] if shape.activations in (Activations.stream, Activations.recompute) else None,
        recompute=shape.activations is Activations.recompute,
    )
