"""Epochs and their phases: train, then validate under the optimizer-memory policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice

import torch
from torch import Tensor, nn

from tft_exp.config import BatchConfig, Gradients, OptimizerConfig, Precision, TrainerConfig
from tft_exp.data.rows import Batch
from tft_exp.data.runs import Runs, RunSource
from tft_exp.errors import TrainingError
from tft_exp.memory.audit import Audit, Finding, Witness
from tft_exp.memory.devices import DeviceMemory
from tft_exp.memory.policies import Move, OptimizerOwner, Policy, kept_on_host, step_in_backward
from tft_exp.memory.tensors import state_tensors
from tft_exp.memory.timeline import PhaseRecord, Timeline
from tft_exp.model.quantiles import QuantileRisk, quantile_loss
from tft_exp.training.optimizers import learning_rate_at, set_learning_rate

AUTOCAST = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}

# Gathers the batch of some runs of windows; data.rows.WindowedRows.gather in a run.
Gather = Callable[[Runs], Batch]


@dataclass(frozen=True)
class Quality:
    """Forecast quality over a split. `loss` is the mean quantile loss of the scaled target; `q_risk` is by quantile,
    in the target's own unit (Lim et al. 2021, eq. 26)."""

    loss: float
    q_risk: dict[float, float]


@dataclass(frozen=True)
class StateAudit:
    """What became of the optimizer's state before a validation, and of what the policy claimed to free."""

    state_mib: float  # on the device, after training
    in_validation_mib: float  # how much of it the device still held during validation
    finding: Finding


@dataclass(frozen=True)
class EpochResult:
    """What one epoch did and cost. Seconds are wall seconds with the device idle at both ends."""

    epoch: int
    train_loss: float
    validation: Quality
    learning_rate: float  # of the last step
    windows: int
    audit: StateAudit
    phases: list[PhaseRecord]
    improved: bool

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.phases)

    @property
    def policy_seconds(self) -> float:
        return self.phase("before_validation").seconds + self.phase("after_validation").seconds

    @property
    def windows_per_second(self) -> float:
        return self.windows / self.phase("train").seconds

    def phase(self, name: str) -> PhaseRecord:
        return next(record for record in self.phases if record.phase == name)


@dataclass
class Trainer:
    """Trains `model` on runs of windows drawn anew every epoch, and validates it on others.

    `on_batch` is called with the phase's name after every batch and its step, without waiting for the device; `on_audit` before every
    validation, and what it raises ends the training.
    """

    model: nn.Module
    quantiles: Tensor
    owner: OptimizerOwner
    policy: Policy
    timeline: Timeline
    config: TrainerConfig
    batch: BatchConfig
    optimizer: OptimizerConfig
    seed: int
    gradients: Gradients = Gradients.after_step
    rewarmup_steps: int = 0
    offload_activations: bool = False
    rehearse: int | None = None  # run so many batches of each phase, its sizes those of the whole; None runs all
    on_batch: Callable[[str], None] = lambda phase: None
    on_audit: Callable[[StateAudit], None] = lambda audit: None
    best_loss: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self.device = self.memory.device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.precision is Precision.fp16)
        self.order = torch.Generator().manual_seed(self.seed)
        self.step = 0
        self._builds_seen, self._steps_since_build = self.owner.builds, 0
        self.learning_rate = self.optimizer.learning_rate
        self._holders_named = False
        if self.gradients is Gradients.in_backward:
            step_in_backward(self.model, lambda parameters: self.policy.step(self.owner.current, self.memory, parameters))

    @property
    def memory(self) -> DeviceMemory:
        return self.timeline.memory

    def batches(self, windows: int) -> tuple[int, int]:
        """Batches of a training epoch over so many windows, and optimizer steps."""
        batches = math.ceil(windows / self.batch.train)
        if self.config.limit_train_batches is not None:
            batches = min(batches, self.config.limit_train_batches)
        return batches, math.ceil(batches / self.batch.accumulate)

    def epochs(self, gather: Gather, train: RunSource, validation: Sequence[Runs]) -> Iterator[EpochResult]:
        """Run epoch after epoch; what the caller does between two of them is in no timed or measured phase.

        Raises TrainingError where a loss is no finite number, and whatever the device raises when memory runs out.
        """
        total_steps = self.batches(len(train))[1] * self.config.max_epochs
        stale = 0
        for epoch in range(self.config.max_epochs):
            with self.timeline.phase("train", epoch):
                losses = self.train(gather, train, total_steps)
            with ExitStack() as residency:
                move = self._before_validation(residency, epoch)
                with self.timeline.phase("validation", epoch):
                    quality = self.evaluate(gather, validation, move)
                with self.timeline.phase("after_validation", epoch):
                    residency.close()
            train_loss = self._mean_loss(losses, epoch)
            if not math.isfinite(quality.loss):
                raise TrainingError(
                    f"the validation loss became {quality.loss} in epoch {epoch + 1}",
                    mend="lower optimizer.learning_rate, or look for outliers with tft-exp check",
                )
            improved = quality.loss < self.best_loss
            self.best_loss = min(self.best_loss, quality.loss)
            stale = 0 if improved else stale + 1
            windows = min(len(train), losses.numel() * self.batch.train)
            phases = self.timeline.of_epoch(epoch)
            yield EpochResult(
                epoch=epoch,
                train_loss=train_loss,
                validation=quality,
                learning_rate=self.learning_rate,
                windows=windows,
                audit=self.audit,
                phases=phases,
                improved=improved,
            )
            patience = self.config.early_stopping_patience
            if patience is not None and stale >= patience:
                return

    def _before_validation(self, residency: ExitStack, epoch: int) -> Move:
        """Enter the policy's context, and audit what it says that it frees."""
        witness = Witness(state_tensors(self.owner.current), self.memory)
        audit = Audit(self.policy.claim(self.owner, self.model, self.memory), self.memory)
        with self.timeline.phase("before_validation", epoch, settled=True):
            move = residency.enter_context(self.policy.around_validation(self.owner, self.model, self.memory))
        finding = audit.close(name_holders=self.rehearse is None and not self._holders_named)
        self._holders_named |= bool(finding.holders)
        self.audit = StateAudit(witness.total_mib, witness.alive_mib(), finding)
        # Told now: where validation runs out of memory there will be no result of this epoch.
        self.on_audit(self.audit)
        return move

    def train(self, gather: Gather, source: RunSource, total_steps: int) -> Tensor:
        """One pass over runs drawn from `source`; the loss of every batch, on the device, [batches]."""
        self.model.train()
        batches, _ = self.batches(len(source))
        drawn = source.draw(self.order, batches * self.batch.train)
        losses = torch.full((batches,), math.nan, device=self.device)
        index = 0
        for of_step in islice(drawn.parts(self.batch.train * self.batch.accumulate), self.rehearse):
            self._set_learning_rate(total_steps)
            batches_of_step = list(islice(of_step.parts(self.batch.train), self.rehearse))
            for number, of_batch in enumerate(batches_of_step, start=1):
                # Weighted by its share of the step's windows, so that accumulation equals one large batch.
                loss = self._loss(gather(of_batch))
                self.scaler.scale(loss * (len(of_batch) / len(of_step))).backward()
                losses[index] = loss.detach()
                index += 1
                if number == len(batches_of_step):
                    self._optimizer_step()
                self._after_batch("train")
        return losses

    def _loss(self, batch: Batch) -> Tensor:
        autocast = torch.autocast(self.device.type, AUTOCAST[self.config.precision], enabled=self.config.precision is not Precision.fp32)
        with autocast, kept_on_host(self.model, self.memory) if self.offload_activations else nullcontext():
            forecast = self.model(batch.inputs)
        return quantile_loss(forecast, batch.target, self.quantiles)

    def _after_batch(self, phase: str) -> None:
        if self.policy.clear_after_batch:
            self.memory.clear_cache()
        self.on_batch(phase)

    def _set_learning_rate(self, total_steps: int) -> None:
        self.learning_rate = learning_rate_at(
            self.step,
            base=self.optimizer.learning_rate,
            schedule=self.config.schedule,
            warmup_steps=self.config.warmup_steps,
            total_steps=total_steps,
        )
        if self.owner.builds != self._builds_seen:
            self._builds_seen, self._steps_since_build = self.owner.builds, 0
        if self.owner.builds > 1:
            self.learning_rate *= min(1.0, (self._steps_since_build + 1) / (self.rewarmup_steps + 1))
        set_learning_rate(self.owner.current, self.learning_rate)

    def _optimizer_step(self) -> None:
        if self.gradients is Gradients.after_step:
            optimizer = self.owner.current
            if self.config.gradient_clip_norm is not None:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip_norm)
            if self.scaler.is_enabled():
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                self.policy.step(optimizer, self.memory, list(self.model.parameters()))
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._steps_since_build += 1

    def evaluate(self, gather: Gather, runs: Sequence[Runs], move: Move) -> Quality:
        """Forecast quality over the windows of `runs`; `move` brings each batch to where the model is. A rehearsal has the first
        batches of the first two kinds of runs, among which are the largest."""
        self.model.eval()
        score = QualityMeter(move(self.quantiles))
        precision = self.config.precision
        with torch.no_grad():
            parts = [islice(alike.parts(self.batch.validation), self.rehearse) for alike in runs[: self.rehearse]]
            for part in chain.from_iterable(parts):
                batch = batch_to(gather(part), move)
                with torch.autocast(batch.target.device.type, AUTOCAST[precision], enabled=precision is not Precision.fp32):
                    forecast = self.model(batch.inputs)
                score.update(forecast, batch)
                self._after_batch("validation")
        return score.result()

    def _mean_loss(self, losses: Tensor, epoch: int) -> float:
        finite = torch.isfinite(losses)
        if not bool(finite.all()):
            first = int((~finite).nonzero()[0])
            raise TrainingError(
                f"the training loss became {float(losses[first])} in epoch {epoch + 1}, batch {first + 1} of {len(losses)}",
                mend="lower optimizer.learning_rate, set trainer.gradient_clip_norm, or look for outliers with tft-exp check",
            )
        return float(losses.mean())


def batch_to(batch: Batch, move: Move) -> Batch:
    """The batch with every tensor moved."""
    return Batch(batch.inputs.moved(move), move(batch.target), move(batch.location), move(batch.scale))


def spread_over(windows: Tensor, most: int | None) -> Tensor:
    """At most `most` of the windows, spaced evenly, so that every entity and time has its share."""
    if most is None or len(windows) <= most:
        return windows
    return windows[torch.linspace(0, len(windows) - 1, most, dtype=torch.float64).long()]


class QualityMeter:
    """Accumulates forecast quality on the device, without waiting for it batch by batch."""

    def __init__(self, quantiles: Tensor) -> None:
        self._quantiles = quantiles
        self._risk = QuantileRisk(quantiles)
        self._loss = torch.zeros((), device=quantiles.device)
        self._windows = 0

    def update(self, forecast: Tensor, batch: Batch) -> None:
        """`forecast` is scaled, [batch, horizon, quantiles]."""
        forecast = forecast.float()
        self._loss += quantile_loss(forecast, batch.target, self._quantiles) * len(batch.target)
        self._windows += len(batch.target)
        location, scale = batch.location[:, None], batch.scale[:, None]
        self._risk.update(forecast * scale[..., None] + location[..., None], batch.target * scale + location)

    def result(self) -> Quality:
        return Quality(float(self._loss) / max(1, self._windows), self._risk.compute())
