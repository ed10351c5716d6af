"""pytorch-forecasting in the benchmarks: TimeSeriesDataSet, its data loader, and Lightning's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from job import ENTITY, STEP, TARGET
from lightning_steps import QUIET, steps_callback
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import TorchNormalizer
from pytorch_forecasting.metrics import QuantileLoss
from torch.utils.data import DataLoader
from worker import AfterStep, Program, evaluating, main


class PytorchForecasting(Program):
    version = version("pytorch-forecasting")
    differences = (
        "its loss sums over quantiles where others take the mean, which Adam does not notice",
        "a pass over the training windows drops the last batch that is not full",
        "scalers, target normalizer, relative time index, encoder length and target scales are off",
    )

    def build(self) -> None:
        job, panel = self.job, self.job.panel
        frame = pd.read_parquet(panel.path, columns=[ENTITY, STEP, TARGET, *panel.known, *panel.observed])
        reals = [TARGET, *panel.known, *panel.observed]
        self.train_set = TimeSeriesDataSet(
            frame[frame[STEP] < panel.cut],
            time_idx=STEP,
            target=TARGET,
            group_ids=[ENTITY],
            min_encoder_length=job.lookback,
            max_encoder_length=job.lookback,
            min_prediction_length=job.horizon,
            max_prediction_length=job.horizon,
            static_categoricals=[ENTITY],
            time_varying_known_reals=panel.known,
            time_varying_unknown_reals=[TARGET, *panel.observed],
            add_relative_time_idx=False,
            add_target_scales=False,
            add_encoder_length=False,
            target_normalizer=TorchNormalizer(method="identity", center=False),
            scalers=dict.fromkeys(reals[1:]),
        )
        past = frame[frame[STEP] >= panel.cut - job.lookback]
        self.validation_set = TimeSeriesDataSet.from_dataset(self.train_set, past, min_prediction_idx=panel.cut)

    def assemble(self) -> None:
        job = self.job
        pl.seed_everything(job.seed)
        self.model = TemporalFusionTransformer.from_dataset(
            self.train_set,
            hidden_size=job.hidden,
            hidden_continuous_size=job.continuous or job.hidden,
            attention_head_size=job.heads,
            lstm_layers=job.layers,
            dropout=job.dropout,
            loss=QuantileLoss(list(job.quantiles)),
            optimizer="adam",
            learning_rate=job.learning_rate,
        )

    def loader(self) -> DataLoader[Any]:
        return self.train_set.to_dataloader(train=True, batch_size=self.job.batch)

    def fit(self, steps: int, begin: Callable[[], None], after: AfterStep) -> None:
        callback = steps_callback(pl.Callback, lambda module: begin(), after)
        trainer = pl.Trainer(max_steps=steps, max_epochs=-1, callbacks=[callback], **QUIET)
        trainer.fit(self.model, train_dataloaders=self.loader())

    def epoch(self) -> None:
        self.assemble()
        loader = self.validation_set.to_dataloader(train=False, batch_size=self.job.evaluation_batch)
        pl.Trainer(max_epochs=1, **QUIET).fit(self.model, train_dataloaders=self.loader(), val_dataloaders=loader)

    def training_windows(self) -> int:
        return len(self.train_set)

    def load(self) -> Iterator[int]:
        while True:
            for _, (target, _) in self.loader():
                yield len(target)

    def validation(self, batch: int) -> Iterator[tuple[Any, np.ndarray]]:
        def chosen(index: pd.DataFrame) -> pd.Series:
            return index["time_idx_first_prediction"].map(self.job.evaluated)

        for inputs, (target, _) in self.validation_set.filter(chosen).to_dataloader(train=False, batch_size=batch):
            yield inputs, target.numpy()

    def forecast(self, inputs: Any) -> np.ndarray:
        with evaluating(self.model):
            forecast: np.ndarray = self.model(inputs)["prediction"].numpy()
        return forecast


if __name__ == "__main__":
    main(PytorchForecasting)
