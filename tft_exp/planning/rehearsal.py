"""The trainer's own steps, validation and policy on tensors without values: every allocation of a run, and no arithmetic.

Fake tensors have shapes and storages of the right size, and nothing in them. What the program asks of a value (is the loss
finite?) is answered by a constant. Nothing here knows what a Temporal Fusion Transformer is made of.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tft_exp.config import Compile, Config, DeviceKind
from tft_exp.data.rows import InputTensors, WindowedRows
from tft_exp.data.runs import batches_of
from tft_exp.hardware import kernel_memory, planned_device
from tft_exp.memory.ledger import Kind, Place
from tft_exp.memory.timeline import Timeline
from tft_exp.memory.trace import Trace, TracingAllocator, unroll
from tft_exp.memory.virtual import VirtualMemory
from tft_exp.planning.cost import CostMeter, Work
from tft_exp.planning.plan import FIRST, LATER
from tft_exp.planning.shape import DataShape
from tft_exp.training.assembly import assemble

# Of each phase: the second batch begins while what is left of the first is still held, and its step finds the state there.
BATCHES = 2
# The second epoch begins where the policy left the first.
EPOCHS = 2
# Every later step and epoch asks for the same again, and may find it in other places: so many more of them are laid out.
MORE_STEPS = 5
MORE_EPOCHS = 2

BETWEEN = "between phases"


@dataclass(frozen=True)
class Rehearsal:
    """A run's allocations in intervals, what was live at each interval's peak by kind (bytes), the host's highest bytes, and
    the work by interval, of which `batches` were run."""

    trace: Trace  # with more steps and epochs than were run, each a repetition
    intervals: tuple[str, ...]
    makeup: tuple[dict[Kind, int], ...]
    host_peak: int
    parameters: int
    work: dict[str, Work]
    batches: dict[str, int]
    validation_batches: int  # of a run's epoch
    epochs: int


def rehearse(config: Config, shape: DataShape) -> Rehearsal:
    """Rehearse a run on a card without limits. Raises UserError where the trainer would, whatever the device."""
    allocator = TracingAllocator()
    device = planned_device(config.device)
    memory = VirtualMemory(0, 0, kernels=kernel_memory(device))
    memory.has_host = device.kind is not DeviceKind.cpu
    memory.allocator = allocator  # type: ignore[assignment]
    timeline = MarkedTimeline(memory, allocator)
    few_epochs = replace(config.trainer, max_epochs=min(EPOCHS, config.trainer.max_epochs))
    short = replace(config, trainer=few_epochs, model=replace(config.model, compile=Compile.none))
    batches: dict[str, int] = {"train": 0, "validation": 0}
    step_ends: list[list[int]] = [[]]  # places in the trace, by epoch
    epoch_ends: list[int] = []
    # Collected before every policy; what the libraries made so far takes long to go through.
    gc.freeze()
    try:
        with FakeTensorMode():
            rows = fake_rows(shape, config.model.lookback, config.model.horizon)
            with memory.attach(), _Unanswered(timeline.meter):
                assembled = assemble(short, rows, shape.sizes, timeline)
                trainer = assembled.trainer
                trainer.rehearse = BATCHES

                def on_batch(phase: str) -> None:
                    batches[phase] += 1
                    if trainer.step == 1 and timeline.interval == FIRST:
                        timeline.begin(LATER)
                    if phase == "train" and trainer.step > sum(map(len, step_ends)):
                        step_ends[-1].append(len(allocator.trace))

                trainer.on_batch = on_batch
                for _ in trainer.epochs(assembled.rows.gather, assembled.train, assembled.validation):
                    epoch_ends.append(len(allocator.trace))
                    step_ends.append([])
                timeline.begin(BETWEEN)
                more_steps = min(MORE_STEPS, trainer.batches(len(assembled.train))[1] - BATCHES)
                more_epochs = min(MORE_EPOCHS, config.trainer.max_epochs - EPOCHS)
                validation_batches = batches_of(assembled.validation, config.batch.validation)
                parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    finally:
        gc.unfreeze()
    return Rehearsal(
        trace=prolonged(allocator.trace, step_ends, epoch_ends, more_steps, more_epochs),
        intervals=tuple(allocator.intervals),
        makeup=tuple(timeline.makeup),
        host_peak=timeline.host_peak,
        parameters=parameters,
        work=dict(timeline.meter.by_interval),
        batches=batches,
        validation_batches=validation_batches,
        epochs=short.trainer.max_epochs,
    )


def prolonged(trace: Trace, step_ends: list[list[int]], epoch_ends: list[int], more_steps: int, more_epochs: int) -> Trace:
    """The trace with each epoch's second step, and then the second epoch, repeated."""
    for epoch in reversed(range(len(epoch_ends))):
        if len(step_ends[epoch]) == BATCHES and more_steps > 0:
            grown = unroll(trace, step_ends[epoch][0], step_ends[epoch][1], more_steps)
            epoch_ends = [end + (len(grown) - len(trace) if index >= epoch else 0) for index, end in enumerate(epoch_ends)]
            trace = grown
    if len(epoch_ends) == EPOCHS and more_epochs > 0:
        trace = unroll(trace, epoch_ends[0], epoch_ends[1], more_epochs)
    return trace


class MarkedTimeline(Timeline):
    """A timeline whose phases are intervals of the trace; training is two, its first step and all later ones."""

    def __init__(self, memory: VirtualMemory, allocator: TracingAllocator) -> None:
        super().__init__(memory)
        self._virtual, self._allocator = memory, allocator
        self.meter = CostMeter(memory.ledger)
        self.makeup: list[dict[Kind, int]] = []
        self.host_peak = 0
        self.interval = ""

    @contextmanager
    def phase(self, name: str, epoch: int = 0, *, settled: bool = False) -> Iterator[None]:
        self.begin((FIRST if epoch == 0 else LATER) if name == "train" else name)
        with super().phase(name, epoch, settled=settled):
            yield
        self.begin(BETWEEN)

    def begin(self, interval: str) -> None:
        """End the open interval and begin another."""
        self._virtual.classify()
        accounts = self._virtual.ledger.accounts
        if self.interval:
            self.makeup.append(dict(accounts[Place.card].at_peak))
            self.host_peak = max(self.host_peak, accounts[Place.host].peak_total)
        self._virtual.reset_peak()
        self._allocator.begin(interval)
        self.meter.begin(interval)
        self.interval = interval


class _Unanswered(TorchDispatchMode):
    """Answers what a program asks of a value that is not there: true, or one, as of a first step's count and of a loss that is
    finite; zero where a gradient scaler asks for infinities. Outermost, so that the answer costs nothing."""

    def __init__(self, meter: CostMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter = meter
        self._infinities: set[int] = set()  # storages that say whether a gradient was infinite

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap every call against being compiled, which nothing here is.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            if dtype is torch.bool:
                return True
            value = 0 if args[0].untyped_storage()._cdata in self._infinities else 1
            return float(value) if dtype.is_floating_point else value
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._infinities.add(args[1].untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        self._meter.count(func, args, kwargs or {}, result)
        return result


def fake_rows(shape: DataShape, lookback: int, horizon: int) -> WindowedRows:
    """Rows of that shape in host memory, as a data set has them. To be called under fake tensors."""

    def table(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype)

    sizes, rows, entities = shape.sizes, shape.rows, shape.entities
    tensors = InputTensors(
        heads=torch.empty(entities, dtype=torch.int32),
        static_reals=table(entities, sizes.static_reals),
        static_categoricals=table(entities, len(sizes.static_cardinalities), torch.int64),
        known_reals=table(rows, sizes.known_reals),
        known_categoricals=table(rows, len(sizes.known_cardinalities), torch.int64),
        observed_reals=table(rows, sizes.observed_reals),
        observed_categoricals=table(rows, len(sizes.observed_cardinalities), torch.int64),
        target=torch.empty(rows),
        target_location=torch.empty(entities),
        target_scale=torch.empty(entities),
    )
    windows = {split: torch.empty(shape.windows(split), dtype=torch.int32) for split in shape.stretches}
    stretches = {split: np.repeat(*np.array(found, dtype=np.int64).reshape(-1, 2).T) for split, found in shape.stretches.items()}
    return WindowedRows(lookback, horizon, windows, stretches, tensors)
