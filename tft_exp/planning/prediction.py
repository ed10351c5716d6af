"""A run's plan beside its measurement, and the batch that a plan proposes."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from tft_exp.config import Config, TrackingConfig
from tft_exp.hardware import planned_device
from tft_exp.memory.devices import DeviceMemory
from tft_exp.memory.timeline import PhaseRecord
from tft_exp.planning.plan import CardSpeed, Plan, Verdict
from tft_exp.planning.shape import DataShape
from tft_exp.startup import process_context

log = logging.getLogger("tft_exp")

# What a plan has peaks of; a run measures other phases too.
COMPARED = ("train", "before_validation", "validation", "after_validation")


@dataclass(frozen=True)
class Prediction:
    """A plan in the quantity that the device measures: of a process, on top of what it held beside the run's own tensors."""

    plan: Plan
    held_beside_mib: float = 0.0

    def measured_from(self, setup: PhaseRecord, memory: DeviceMemory) -> Prediction:
        """The prediction once a run is set up: a process then holds libraries and what reading the data left, too."""
        planned = self.plan.of_run_phase("setup")
        if memory.quantity != "rss" or planned is None:
            return self
        return replace(self, held_beside_mib=setup.end.allocated_mib - planned.live_mib)

    def peak_mib(self, phase: str) -> float | None:
        peak = self.plan.of_run_phase(phase) if phase in COMPARED else None
        return None if peak is None else self.held_beside_mib + peak.allocated_mib

    def metrics(self, records: Sequence[PhaseRecord]) -> dict[str, float]:
        """`predicted_peak_mib` and `prediction_error_pct` (over what was measured; more is above 0) of the completed phases, each
        by its name and of the highest of them without one."""
        measured: dict[str, float] = {}
        for record in records:
            if record.completed and self.peak_mib(record.phase) is not None:
                measured[record.phase] = max(measured.get(record.phase, 0.0), record.peak.allocated_mib)
        predicted = {phase: self.peak_mib(phase) or 0.0 for phase in measured}
        if not measured:
            return {}
        pairs = {f"{phase}_": (predicted[phase], measured[phase]) for phase in measured}
        pairs[""] = max(predicted.values()), max(measured.values())
        found: dict[str, float] = {}
        for prefix, (guess, truth) in pairs.items():
            found[f"{prefix}predicted_peak_mib"] = guess
            if truth > 0:
                found[f"{prefix}prediction_error_pct"] = (guess / truth - 1.0) * 100.0
        return found


def predict(config: Config, shape: DataShape) -> Prediction | None:
    """The prediction of a run; None, with a warning, where it cannot be rehearsed: no run is lost to its prediction."""
    try:
        plan = planned(config, shape)
    except Exception as error:  # whatever torch cannot do without values
        log.warning("the run cannot be predicted: %s: %s", type(error).__name__, error)
        return None
    if plan.verdict is Verdict.out_of_memory:
        log.warning("the plan says: %s", plan.outcome.replace("_", " "))
    return Prediction(plan)


def propose_batch(config: Config, shape: DataShape) -> Config:
    """The configuration with the largest batch of halves that the plan does not see running out of memory; where even the
    smallest does, that one. What a step adds up stays."""
    while (prediction := predict(config, shape)) is not None and prediction.plan.verdict is Verdict.out_of_memory:
        smaller = halved(config, prediction.plan.out_of_memory_in or "")
        if smaller is None:
            break
        config = smaller
    return config


def halved(config: Config, phase: str) -> Config | None:
    """Half the windows at once in the phase that ran out of memory, the gradients of as many added up, and as many windows an
    epoch; None where half is none, or where fewer windows would not help."""
    batch, trainer = config.batch, config.trainer
    if phase == "validation" and batch.validation % 2 == 0:
        limit = trainer.limit_validation_batches
        return replace(
            config,
            batch=replace(batch, validation=batch.validation // 2),
            trainer=replace(trainer, limit_validation_batches=limit and limit * 2),
        )
    if phase in ("train", "between phases") and batch.train % (2 * batch.run_length) == 0:
        limit = trainer.limit_train_batches
        return replace(
            config,
            batch=replace(batch, train=batch.train // 2, accumulate=batch.accumulate * 2),
            trainer=replace(trainer, limit_train_batches=limit and limit * 2),
        )
    return None


# By all that a plan depends on, as text; runs that differ in their seed share one, also between the jobs of a sweep.
plans: dict[str, Plan] = {}
# To a process that waits to plan; None where there is none.
_reserve: Connection | None = None


def plan_in_reserve() -> None:
    """Fork a process that waits to plan. It is to be called before any torch operation, when a fork is still safe, and saves
    what another process would import anew. Where processes cannot be forked, or one waits already, it does nothing."""
    global _reserve
    if _reserve is not None or sys.platform != "linux":
        return
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        # Of forking beside threads: those are OpenBLAS's, which knows how, and wait for work.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.Process(target=_wait_to_plan, args=(ours, theirs), daemon=True).start()
    theirs.close()
    _reserve = ours


def _wait_to_plan(ours: Connection, theirs: Connection) -> None:
    ours.close()  # so that the end of the run is seen
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number is signal.SIGTERM else signal.SIG_IGN)
    while True:
        try:
            config, shape = theirs.recv()
        except EOFError:
            return
        try:
            theirs.send((True, _plan(config, shape)))
        except Exception as error:
            theirs.send((False, RuntimeError(f"{type(error).__name__}: {error}")))


def planned(config: Config, shape: DataShape) -> Plan:
    """The plan of a run, made in a process of its own: what a rehearsal imports would stand in the figures of this one."""
    config = replace(config, device=planned_device(config.device), seed=0, tracking=TrackingConfig())
    key = repr((config, shape))
    if key not in plans:
        plans[key] = _plan_apart(config, shape)
    return plans[key]


def _plan_apart(config: Config, shape: DataShape) -> Plan:
    if _reserve is None:
        with ProcessPoolExecutor(1, mp_context=process_context("tft_exp.planning.worker")) as pool:
            return pool.submit(_plan, config, shape).result()
    _reserve.send((config, shape))
    succeeded, value = _reserve.recv()
    if not succeeded:
        raise value
    found: Plan = value
    return found


def _plan(config: Config, shape: DataShape) -> Plan:
    import torch

    from tft_exp.planning.layout import make_plan

    torch.set_num_threads(1)
    return make_plan(config, shape, CardSpeed())
