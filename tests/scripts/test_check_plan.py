"""Plans against runs on a virtual card, over a sample of the catalogue; scripts/check_plan.py goes through all of it."""

from __future__ import annotations

from types import ModuleType

import pytest

from tft_exp.compose import compose_config
from tft_exp.data.dataset import load_dataset

RAGGED = (
    "data=bars data.path=tests/data/us_equities_daily_ragged.parquet data.time=timestamp data.entities=[symbol] data.max_gap=5d "
    "data.on_bad_rows=drop data.on_short_entity=drop data.on_unseen_entity=drop model.lookback=20 model.horizon=3"
)
SAMPLE = [
    "model=tiny policy=keep optimizer=adamw model.lstm_layers=2 batch.accumulate=3",
    "model=base policy=clear_cache_every_batch optimizer=adamw",
    "model=tiny policy=stash optimizer=sgd_momentum trainer.precision=fp16",
    "model=tiny policy=recreate optimizer=adamw_8bit",
    "model=small policy=offload optimizer=adafactor",
    "model=small policy=recreate_rewarm optimizer=galore",
    "model=tiny policy=cpu_validation optimizer=adamw_bf16",
    "model=tiny policy=offload_always optimizer=muon gradients=in_backward trainer.gradient_clip_norm=null",
    "model=small policy=keep model.activations=keep batch.train=64 batch.validation=64",
    "model=small policy=keep model.activations=recompute trainer.precision=bf16",
    "model=small policy=offload model.activations=offload gradients=in_backward trainer.gradient_clip_norm=null",
    # Rows that windows share: runs in training, and in validation whatever a gap or an entity's end leaves of them.
    "model=tiny policy=keep batch.train=12 batch.run_length=4 batch.run_stride=3 trainer.limit_validation_batches=null batch.validation=64",
    f"model=tiny policy=offload batch.train=6 batch.run_length=3 trainer.limit_validation_batches=null batch.validation=100 {RAGGED}",
]


@pytest.mark.parametrize("overrides", SAMPLE)
def test_a_plan_is_what_the_run_takes_and_what_it_calls_enough_is(overrides: str, script: ModuleType) -> None:
    config = compose_config(["device=virtual_24gb", *script.SHORT, *overrides.split()])
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    found = script.check(overrides, config, dataset)
    assert found.error_percent < 0.1, found
    assert found.out_of_memory_in is None, found
    assert found.least_mib > 16
