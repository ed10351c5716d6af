"""tft-exp in the benchmarks: its own public functions, with the overrides that the job adds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from job import ENTITY, TARGET, TIME, Job
from worker import AfterStep, Program, evaluating, main

from tft_exp.compose import compose_config
from tft_exp.data.dataset import load_dataset
from tft_exp.data.rows import Batch
from tft_exp.data.runs import Runs
from tft_exp.hardware import open_device_memory, resolve_device
from tft_exp.memory.timeline import Timeline
from tft_exp.training.assembly import assemble


class Enough(Exception):
    """Ends a pass over the training windows in its middle."""


def overrides_of(job: Job) -> list[str]:
    """The job as overrides of `tft-exp train`; those that the job brings come last."""
    panel = job.panel
    return [
        "data=table",
        "features=none",
        f"data.path='{panel.path}'",
        f"data.time={TIME}",
        f"data.entities=[{ENTITY}]",
        f"data.target={TARGET}",
        f"data.known_real=[{','.join(panel.known)}]",
        f"data.observed_real=[{','.join(panel.observed)}]",
        f"data.validation_fraction={(panel.steps - panel.cut) / panel.steps}",
        "model=base",
        f"model.hidden_size={job.hidden}",
        f"model.attention_heads={job.heads}",
        f"model.lstm_layers={job.layers}",
        f"model.dropout={job.dropout}",
        f"model.lookback={job.lookback}",
        f"model.horizon={job.horizon}",
        f"model.quantiles=[{','.join(map(str, job.quantiles))}]",
        f"batch.train={job.batch}",
        f"batch.validation={job.evaluation_batch}",
        "optimizer=adamw",
        f"optimizer.learning_rate={job.learning_rate}",
        "optimizer.weight_decay=0.0",  # AdamW without decay is Adam
        "trainer.max_epochs=1",
        "trainer.gradient_clip_norm=null",
        "device=cpu",
        f"seed={job.seed}",
        "data.cache=cache",  # in the process's own new folder: every start is a first one
        *job.overrides,
    ]


class TftExp(Program):
    version = version("tft-exp")
    differences = (
        "scales what it reads by entity once more, which standardised rows leave as they are",
        "the benchmark's process imports no MLflow and records nothing",
    )

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.config = compose_config(overrides_of(job))

    def build(self) -> None:
        model = self.config.model
        self.dataset = load_dataset(self.config.data, self.config.features, lookback=model.lookback, horizon=model.horizon)

    def assemble(self) -> None:
        memory = open_device_memory(self.config.device, resolve_device(self.config.device))
        assembled = assemble(self.config, self.dataset.rows, self.dataset.sizes, Timeline(memory))
        self.trainer, self.rows, self.train_source = assembled.trainer, assembled.rows, assembled.train
        self.validation_runs = assembled.validation

    def fit(self, steps: int, begin: Callable[[], None], after: AfterStep) -> None:
        done = itertools.count(1)

        def on_batch(phase: str) -> None:
            step = next(done)
            if after(step) or step >= steps:
                raise Enough

        begin()
        self.trainer.on_batch = on_batch
        try:
            while True:
                self.trainer.train(self.rows.gather, self.train_source, total_steps=steps)
        except Enough:
            self.trainer.on_batch = lambda phase: None

    def epoch(self) -> None:
        self.assemble()
        for _ in self.trainer.epochs(self.rows.gather, self.train_source, self.validation_runs):
            pass

    def training_windows(self) -> int:
        return len(self.train_source)

    def load(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.job.seed)
        while True:
            for part in self.train_source.draw(generator, len(self.train_source)).parts(self.job.batch):
                yield len(self.rows.gather(part).target)

    def validation(self, batch: int) -> Iterator[tuple[Batch, np.ndarray]]:
        # Rows lie entity after entity, all of one length; a window is the row that it begins at.
        first = self.rows.windows["validation"]
        evaluated = [self.job.evaluated(step) for step in (first % self.job.panel.steps + self.job.lookback).tolist()]
        first = first[torch.tensor(evaluated)]
        breaks = (first.diff() != self.job.stride).nonzero().flatten() + 1
        for stretch in first.tensor_split(breaks):
            for piece in stretch.split(batch):
                gathered = self.rows.gather(Runs(piece[:1], len(piece), self.job.stride))
                yield gathered, gathered.target.numpy()

    def forecast(self, inputs: Any) -> np.ndarray:
        with evaluating(self.trainer.model):
            forecast: np.ndarray = self.trainer.model(inputs.inputs).float().numpy()
        return forecast


if __name__ == "__main__":
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    main(TftExp)
