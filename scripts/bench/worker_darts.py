"""darts in the benchmarks: TimeSeries of each entity, its training data set and loader, and Lightning's loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from darts import TimeSeries
from darts.models import TFTModel
from darts.models.forecasting.torch_forecasting_model import TorchDataModule, _batch_collate_fn_train
from darts.utils.data import SequentialTorchTrainingDataset
from darts.utils.data.torch_datasets.utils import ModuleStage
from darts.utils.likelihood_models.torch import QuantileRegression
from job import ENTITY, STEP, TARGET
from lightning_steps import QUIET, steps_callback
from worker import AfterStep, Program, evaluating, main


class Darts(Program):
    version = version("darts")
    differences = (
        "the entity is a static covariate with an embedding, coded as a number before the series are built",
        "past targets of validation windows come from series that begin a lookback before the cut",
        "relative time index and reversible instance normalisation are off",
    )

    def build(self) -> None:
        job, panel = self.job, self.job.panel
        frame = pd.read_parquet(panel.path, columns=[ENTITY, STEP, TARGET, *panel.known, *panel.observed])
        frame[ENTITY] = pd.factorize(frame[ENTITY])[0]

        def series(columns: list[str]) -> list[TimeSeries] | None:
            if not columns:
                return None
            grouped = TimeSeries.from_group_dataframe(frame, group_cols=ENTITY, time_col=STEP, value_cols=columns)
            return [one.astype(np.float32) for one in grouped]

        self.past, self.future = series(panel.observed), series(panel.known)
        self.series = series([TARGET]) or []
        self.train = [one[: panel.cut] for one in self.series]
        self.held_out = [one[panel.cut - job.lookback :] for one in self.series]

    def assemble(self) -> None:
        self.module: Any = None  # darts makes it in fit, from the first window

    def model(self, **trainer: Any) -> TFTModel:
        job = self.job
        return TFTModel(
            input_chunk_length=job.lookback,
            output_chunk_length=job.horizon,
            hidden_size=job.hidden,
            hidden_continuous_size=job.continuous or job.hidden,
            lstm_layers=job.layers,
            num_attention_heads=job.heads,
            dropout=job.dropout,
            batch_size=job.batch,
            n_epochs=1_000_000,
            categorical_embedding_sizes={ENTITY: job.panel.entities},
            likelihood=QuantileRegression(list(job.quantiles)),
            optimizer_kwargs={"lr": job.learning_rate},
            random_state=job.seed,
            pl_trainer_kwargs=QUIET | trainer,
        )

    def fit(self, steps: int, begin: Callable[[], None], after: AfterStep) -> None:
        def attach(module: Any) -> None:
            self.module = module
            begin()

        callback = steps_callback(pl.Callback, attach, after)
        model = self.model(max_steps=steps, callbacks=[callback])
        model.fit(self.train, past_covariates=self.past, future_covariates=self.future)

    def epoch(self) -> None:
        self.model().fit(
            self.train,
            past_covariates=self.past,
            future_covariates=self.future,
            val_series=self.held_out,
            val_past_covariates=self.past,
            val_future_covariates=self.future,
            epochs=1,
        )

    def windows(self, series: list[TimeSeries], stride: int = 1) -> SequentialTorchTrainingDataset:
        job = self.job
        return SequentialTorchTrainingDataset(
            series, self.past, self.future, input_chunk_length=job.lookback, output_chunk_length=job.horizon, stride=stride
        )

    def training_windows(self) -> int:
        return len(self.windows(self.train))

    def load(self) -> Iterator[int]:
        data = TorchDataModule(train_dataset=self.windows(self.train), batch_size=self.job.batch, collate_fn=_batch_collate_fn_train)
        for batch in itertools.chain.from_iterable(data.train_dataloader() for _ in itertools.count()):
            yield len(batch.future_target)

    def validation(self, batch: int) -> Iterator[tuple[Any, np.ndarray]]:
        # Its strides count from the end of a series, as Job.evaluated does.
        held_out = self.windows(self.held_out, self.job.stride)
        for drawn in TorchDataModule(val_dataset=held_out, batch_size=batch, collate_fn=_batch_collate_fn_train).val_dataloader():
            yield drawn.to_module_input(stage=ModuleStage.VALIDATE), drawn.future_target[..., 0].numpy()

    def forecast(self, inputs: Any) -> np.ndarray:
        with evaluating(self.module):
            forecast: np.ndarray = self.module(inputs).prediction[:, :, 0].numpy()
        return forecast


if __name__ == "__main__":
    main(Darts)
