"""neuralforecast in the benchmarks: TimeSeriesDataset, windows made by the model itself at every step, and Lightning's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from job import ENTITY, STEP, TARGET
from lightning_steps import QUIET, steps_callback
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import TFT
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset
from worker import AfterStep, Program, evaluating, main


class NeuralForecast(Program):
    version = version("neuralforecast")
    differences = (
        "no embedding of the entity: it is given as one-hot static reals",
        "every step makes all training windows, so that its cost grows with the rows, and draws from them; an epoch is as many such steps",
        "the training windows include those whose horizon runs past the last training row, masked",
        "per-window scaling (scaler_type) is off; reals are mapped to the hidden size directly, hidden_continuous_size does not exist",
    )

    def build(self) -> None:
        panel = self.job.panel
        frame = pd.read_parquet(panel.path, columns=[ENTITY, STEP, TARGET, *panel.known, *panel.observed])
        names = frame[ENTITY].unique()
        self.flags = [f"is_{number}" for number in range(len(names))]
        static = pd.DataFrame(np.eye(len(names), dtype=np.float32), columns=self.flags)
        static.insert(0, ENTITY, names)

        self.frame, self.static = frame, static
        self.whole = self.dataset(frame)

    def dataset(self, frame: pd.DataFrame) -> TimeSeriesDataset:
        return TimeSeriesDataset.from_df(frame, self.static, id_col=ENTITY, time_col=STEP, target_col=TARGET)[0]

    @cached_property
    def train(self) -> TimeSeriesDataset:
        """Of the training rows alone: no part of `build`, because its users cut validation off in fit."""
        return self.dataset(self.frame[self.frame[STEP] < self.job.panel.cut])

    def assemble(self) -> None:
        self.model = self.new_model(steps=self.job.steps)

    def new_model(self, *, steps: int, **trainer: Any) -> TFT:
        job = self.job
        return TFT(
            h=job.horizon,
            input_size=job.lookback,
            stat_exog_list=self.flags,
            hist_exog_list=job.panel.observed or None,
            futr_exog_list=job.panel.known,
            hidden_size=job.hidden,
            n_head=job.heads,
            n_rnn_layers=job.layers,
            dropout=job.dropout,
            attn_dropout=job.dropout,
            loss=MQLoss(quantiles=list(job.quantiles)),
            max_steps=steps,
            val_check_steps=steps,
            learning_rate=job.learning_rate,
            batch_size=job.panel.entities,
            valid_batch_size=job.panel.entities,
            windows_batch_size=job.batch,
            inference_windows_batch_size=job.evaluation_batch,
            scaler_type="identity",
            random_seed=job.seed,
            **QUIET,
            **trainer,
        )

    def fit(self, steps: int, begin: Callable[[], None], after: AfterStep) -> None:
        self.model = self.new_model(steps=steps, callbacks=[steps_callback(pl.Callback, lambda module: begin(), after)])
        self.model.fit(self.train)

    def epoch(self) -> None:
        panel = self.job.panel
        model = self.new_model(steps=-(-self.job.training_windows // self.job.batch))
        model.fit(self.whole, val_size=panel.steps - panel.cut)

    def drawn(self, dataset: TimeSeriesDataset) -> dict[str, Any]:
        """The rows of all entities, as its loader hands them to the model."""
        loader = TimeSeriesDataModule(dataset, batch_size=self.job.panel.entities).train_dataloader()
        batch: dict[str, Any] = next(iter(loader))
        batch["y_idx"] = batch.get("y_idx", 0)
        return batch

    def windows(self, batch: dict[str, Any], made: Any, index: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
        """Windows that the model makes of rows, as its forward takes them, and their targets [batch, horizon]."""
        model = self.model
        temporal, static, static_cols, final, weight, columns = made
        drawn = model._sample_windows(temporal, static, static_cols, columns, index, final, weight)
        drawn = model._normalization(windows=drawn, y_idx=batch["y_idx"])
        past, past_mask, target, _, observed, known, static = model._parse_windows(batch, drawn)
        inputs = {"insample_y": past, "insample_mask": past_mask, "futr_exog": known, "hist_exog": observed, "stat_exog": static}
        return inputs, target[..., 0]

    def training_windows(self) -> int:
        return len(self.model._create_windows(self.drawn(self.train), step="train")[3])

    def load(self) -> Iterator[int]:
        while True:
            batch = self.drawn(self.train)
            made = self.model._create_windows(batch, step="train")
            index = torch.randperm(len(made[3]))[: self.job.batch]
            yield len(self.windows(batch, made, index)[1])

    def validation(self, batch: int) -> Iterator[tuple[Any, np.ndarray]]:
        job, panel, model = self.job, self.job.panel, self.model
        model.val_size, model.test_size = panel.steps - panel.cut, 0
        rows = self.drawn(self.whole)
        made = model._create_windows(rows, step="val")
        of_entity = panel.steps - panel.cut - job.horizon + 1
        chosen = [number for number in range(len(made[3])) if job.evaluated(panel.cut + number % of_entity)]
        for part in torch.tensor(chosen).split(batch):
            inputs, target = self.windows(rows, made, part)
            yield inputs, target.numpy().copy()
        model.val_size = 0

    def forecast(self, inputs: Any) -> np.ndarray:
        with evaluating(self.model):
            forecast: np.ndarray = self.model(inputs).numpy()
        return forecast


if __name__ == "__main__":
    main(NeuralForecast)
