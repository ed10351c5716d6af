"""The schema of the model, batch, device, trainer and tracking groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tft_exp.config.checks import require


class DeviceKind(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"
    xpu = "xpu"
    virtual = "virtual"


class Schedule(Enum):
    constant = "constant"
    cosine = "cosine"
    linear = "linear"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Activations(Enum):
    keep = "keep"
    stream = "stream"
    recompute = "recompute"
    offload = "offload"


class Compile(Enum):
    none = "none"
    regions = "regions"
    cuda_graphs = "cuda_graphs"


@dataclass
class ModelConfig:
    """Shape of the Temporal Fusion Transformer, and what becomes of its activations until the backward pass: those before the LSTM
    are computed block by block, and again in the backward pass (stream), those after it, too (recompute); all are kept (keep), or
    taken to host memory and back (offload).

    `selection_size` is the hidden layer of the networks that weight the variables: of as many as there are variables, but no more
    than `hidden_size` (null), or of a size of its own, in the paper `hidden_size`.

    `compile` puts what lies between two breaks into kernels of its own (torch.compile), on CUDA also into graphs, which are launched
    at once."""

    hidden_size: int = 32
    attention_heads: int = 4
    lstm_layers: int = 1
    dropout: float = 0.1
    lookback: int = 60
    horizon: int = 10
    quantiles: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])
    selection_size: int | None = None
    activations: Activations = Activations.stream
    compile: Compile = Compile.none

    def __post_init__(self) -> None:
        for key, most in (("hidden_size", 8192), ("attention_heads", 256), ("lstm_layers", 16), ("lookback", 100_000), ("horizon", 10_000)):
            require(1 <= getattr(self, key) <= most, f"model.{key}", getattr(self, key), f"a whole number from 1 to {most}")
        require(
            self.selection_size is None or 1 <= self.selection_size <= 8192,
            "model.selection_size",
            self.selection_size,
            "a whole number from 1 to 8192, or null: as many as variables, at most model.hidden_size",
        )
        require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "from 0 to less than 1")
        require(
            self.hidden_size % self.attention_heads == 0,
            "model.attention_heads",
            self.attention_heads,
            f"it must divide model.hidden_size={self.hidden_size}",
        )
        require(
            len(self.quantiles) > 0 and all(0.0 < q < 1.0 for q in self.quantiles) and sorted(set(self.quantiles)) == list(self.quantiles),
            "model.quantiles",
            list(self.quantiles),
            "rising numbers between 0 and 1, each once",
        )
        require(0.5 in self.quantiles, "model.quantiles", list(self.quantiles), "0.5 must be among them: the median is the point forecast")


@dataclass
class BatchConfig:
    """Windows in a training step's batch and in a validation batch, and batches whose gradients are added up before a step. With
    `auto` a batch that does not fit is halved, and a training step adds up twice as many.

    Training draws runs of `run_length` windows, `run_stride` rows apart, which share what is computed of a row, and its dropout
    mask. With `share_rows` validation shares rows wherever its windows follow each other, which is exact."""

    train: int = 64
    validation: int = 256
    accumulate: int = 1
    auto: bool = False
    run_length: int = 1
    run_stride: int = 1
    share_rows: bool = True

    def __post_init__(self) -> None:
        for key in ("train", "validation", "accumulate", "run_length", "run_stride"):
            require(1 <= getattr(self, key) <= 1_000_000, f"batch.{key}", getattr(self, key), "a whole number from 1 to 1000000")
        require(
            self.train % self.run_length == 0,
            "batch.run_length",
            self.run_length,
            f"it must divide batch.train={self.train}",
            "a batch is made of whole runs",
        )


@dataclass
class DeviceConfig:
    """The device; of a capped or virtual card also its size as the job sees it, and what of it no tensor shows: what the context
    takes, cuBLAS's workspace for each of two threads, and cuDNN's reserve of an LSTM in elements a layer, step, window and
    hidden unit (memory.kernels)."""

    kind: DeviceKind = DeviceKind.auto
    index: int = 0
    capacity_mib: int | None = None
    context_mib: int = 450
    cublas_workspace_kib: int = 8320
    lstm_reserve: float = 5.0
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        if self.kind is DeviceKind.virtual:
            require(self.capacity_mib is not None, "device.capacity_mib", self.capacity_mib, "a virtual card needs a size")
        require(
            self.kind is DeviceKind.virtual or not self.expandable_segments,
            "device.expandable_segments",
            self.expandable_segments,
            "only a virtual card reads it",
            "set PYTORCH_ALLOC_CONF=expandable_segments:True for a real one",
        )
        for key in ("cublas_workspace_kib", "lstm_reserve"):
            require(getattr(self, key) >= 0, f"device.{key}", getattr(self, key), "0 or more")
        require(self.index >= 0, "device.index", self.index, "0 or more")
        if self.capacity_mib is not None:
            require(
                self.kind in (DeviceKind.cuda, DeviceKind.virtual),
                "device.capacity_mib",
                self.capacity_mib,
                f"device.kind={self.kind.value} cannot be capped; only cuda can",
                "set device=cuda_4gb or virtual_4gb, or device.capacity_mib=null",
            )
            require(
                self.capacity_mib > self.context_mib >= 0,
                "device.capacity_mib",
                self.capacity_mib,
                f"more than device.context_mib={self.context_mib}",
            )


@dataclass
class TrainerConfig:
    """Epochs, their limits, and how a step is taken."""

    max_epochs: int = 5
    limit_train_batches: int | None = None
    limit_validation_batches: int | None = None
    early_stopping_patience: int | None = None
    gradient_clip_norm: float | None = 1.0
    schedule: Schedule = Schedule.constant
    warmup_steps: int = 0
    precision: Precision = Precision.fp32

    def __post_init__(self) -> None:
        require(1 <= self.max_epochs <= 100_000, "trainer.max_epochs", self.max_epochs, "a whole number from 1 to 100000")
        for key in ("limit_train_batches", "limit_validation_batches", "early_stopping_patience"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"trainer.{key}", value, "null (no limit), or 1 and more")
        require(
            self.gradient_clip_norm is None or self.gradient_clip_norm > 0,
            "trainer.gradient_clip_norm",
            self.gradient_clip_norm,
            "null, or a positive number",
        )
        require(self.warmup_steps >= 0, "trainer.warmup_steps", self.warmup_steps, "0 or more")


@dataclass
class TrackingConfig:
    """Where MLflow keeps the runs. `uri: null` is a SQLite store in the folder `home`."""

    uri: str | None = None
    home: str = "mlruns"
    experiment: str = "tft-exp"

    def __post_init__(self) -> None:
        require(bool(self.experiment.strip()), "tracking.experiment", self.experiment, "a name")
