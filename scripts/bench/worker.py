"""The side of a benchmark that runs in a program's own environment: what is measured is the same for all of them.

A worker file defines a `Program` and calls `main`. Every finding goes out as a line `RESULT {json}`; all else that a
library prints is its own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from job import Job
from torch import nn

AfterStep = Callable[[int], bool]
MIB = 1 << 20


class Program:
    """One library, asked for the same as the others. `differences` says what it cannot do the same."""

    version = ""
    differences: tuple[str, ...] = ()

    def __init__(self, job: Job) -> None:
        self.job = job

    def build(self) -> None:
        """From the panel's file to data sets from which windows can be drawn."""
        raise NotImplementedError

    def assemble(self) -> None:
        """A fresh model and its optimizer, from the job's seed."""
        raise NotImplementedError

    def fit(self, steps: int, begin: Callable[[], None], after: AfterStep) -> None:
        """Train with the library's own loader and loop: `begin` before the first batch is drawn, `after` with the number of
        steps done after each; it stops after `steps`, or where `after` returns True."""
        raise NotImplementedError

    def epoch(self) -> None:
        """One pass over the training windows and one over the validation windows with the library's own loop, model fresh."""
        raise NotImplementedError

    def training_windows(self) -> int:
        """How many windows it draws training batches from."""
        raise NotImplementedError

    def load(self) -> Iterator[int]:
        """Draw shuffled training batches without training; how many windows each has."""
        raise NotImplementedError

    def validation(self, batch: int) -> Iterator[tuple[Any, np.ndarray]]:
        """The evaluated validation windows: a batch as `forecast` takes it, and its targets [batch, horizon]."""
        raise NotImplementedError

    def forecast(self, inputs: Any) -> np.ndarray:
        """Quantile forecasts of a batch, [batch, horizon, quantiles], standardised like the targets."""
        raise NotImplementedError


def emit(**finding: Any) -> None:
    print("RESULT " + json.dumps(finding), flush=True)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout and gradients, and in training mode again afterwards."""
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train()


def quantile_loss(forecast: np.ndarray, target: np.ndarray, quantiles: tuple[float, ...]) -> float:
    """Pinball loss, the mean over windows, steps and quantiles; in float64."""
    error = target.astype(np.float64)[..., None] - forecast.astype(np.float64)
    levels = np.asarray(quantiles)
    return float(np.maximum(levels * error, (levels - 1.0) * error).mean())


class Stopwatch:
    """Wall and CPU seconds (of all threads of the process) since the last lap."""

    def __init__(self) -> None:
        self.lap()

    def lap(self) -> dict[str, float]:
        now = time.perf_counter(), time.process_time()
        before = getattr(self, "_before", now)
        self._before = now
        return {"wall": now[0] - before[0], "cpu": now[1] - before[1]}


def rates(windows: int, laps: list[dict[str, float]]) -> dict[str, list[float]]:
    """Windows a second of each lap, by the clock on the wall and by the CPU's."""
    return {clock: [windows / max(1e-9, lap[clock]) for lap in laps] for clock in ("wall", "cpu")}


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


def peak_mib() -> float:
    """The most that was ever resident. On Linux ru_maxrss begins with what the parent held when it started this process, so the
    kernel's high-water mark is read there; elsewhere ru_maxrss counts KiB, on macOS bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:", 1)[1].split(maxsplit=1)[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MIB if sys.platform == "darwin" else 1024)


def build(program: Program) -> None:
    """Seconds to build, and MiB: what stays resident, and how far the peak rose above what was resident before."""
    before, watch = resident_mib(), Stopwatch()
    program.build()
    seconds = watch.lap()
    rows = program.job.panel.entities * program.job.panel.steps
    emit(build_seconds=seconds, rows=rows, growth_mib=resident_mib() - before, peak_growth_mib=max(0.0, peak_mib() - before))


def measure(program: Program) -> None:
    """Windows a second: training (loader included), drawing training batches, forecasting batches at hand; seconds of an epoch."""
    job = program.job
    watch = Stopwatch()
    program.build()
    program.assemble()
    emit(setup_seconds=watch.lap(), training_windows=program.training_windows())

    warm_up, laps = 3, []

    def after(step: int) -> bool:
        since_warm_up = step - warm_up
        if since_warm_up >= 0 and since_warm_up % job.batches == 0:
            laps.append(watch.lap())
        return False

    program.fit(warm_up + job.blocks * job.batches, lambda: None, after)
    emit(train=rates(job.batches * job.batch, laps[1:]), peak_rss_mib=peak_mib())

    loaded = []
    batches = program.load()
    next(batches)
    for _ in range(job.blocks):
        watch.lap()
        windows = sum(next(batches) for _ in range(job.batches))
        loaded.append(rates(windows, [watch.lap()]))
    emit(loader={clock: [value for lap in loaded for value in lap[clock]] for clock in ("wall", "cpu")})

    ready = [inputs for inputs, targets in program.validation(job.batch) if len(targets) == job.batch][: job.batches]
    program.forecast(ready[0])
    laps = []
    for _ in range(job.blocks):
        watch.lap()
        for inputs in ready:
            program.forecast(inputs)
        laps.append(watch.lap())
    emit(infer=rates(len(ready) * job.batch, laps))

    watch.lap()
    program.epoch()
    emit(epoch_seconds=watch.lap())


def race(program: Program) -> None:
    """Validation loss against seconds, from the start of the process and from the first step.

    `since_*` leave out the time that evaluations took, `*_with_evaluations` count it.
    """
    job = program.job
    program.build()
    program.assemble()
    ready: list[tuple[Any, np.ndarray]] = []
    first_step = evaluating_before = evaluating_seconds = 0.0
    best, stale = math.inf, 0

    def evaluate(step: int) -> None:
        nonlocal evaluating_seconds, best, stale
        now = time.time()
        cpu = time.process_time()
        total = sum(quantile_loss(program.forecast(inputs), targets, job.quantiles) * len(targets) for inputs, targets in ready)
        loss = total / sum(len(targets) for _, targets in ready)
        best, stale = min(best, loss), 0 if loss < best else stale + 1
        since_first_step = now - first_step if step else 0.0
        emit(
            step=step,
            loss=loss,
            since_start=now - job.started - evaluating_seconds,
            since_start_with_evaluations=now - job.started,
            since_first_step=since_first_step - (evaluating_seconds - evaluating_before if step else 0.0),
            since_first_step_with_evaluations=since_first_step,
            cpu_seconds=cpu,
        )
        evaluating_seconds += time.time() - now

    def begin() -> None:
        nonlocal first_step, evaluating_before, evaluating_seconds
        now = time.time()
        ready.extend(program.validation(job.evaluation_batch))
        targets = np.concatenate([target for _, target in ready])
        emit(evaluation_windows=len(targets), target_mean=float(targets.mean()), target_square=float((targets**2).mean()))
        evaluating_seconds = time.time() - now
        evaluate(0)
        evaluating_before, first_step = evaluating_seconds, time.time()

    def after(step: int) -> bool:
        if step % job.evaluate_every == 0:
            evaluate(step)
        return stale >= job.patience

    program.fit(job.steps, begin, after)
    emit(peak_rss_mib=peak_mib(), best=best, training_windows=program.training_windows())


def main(program_type: type[Program]) -> None:
    """Do the job that the command line holds as JSON."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(job.threads)
    program = program_type(job)
    emit(
        imported_after=time.time() - job.started,
        version=program.version,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        allocator=os.environ.get("GLIBC_TUNABLES", ""),
        differences=program.differences,
    )
    {"build": build, "measure": measure, "race": race}[job.task](program)
