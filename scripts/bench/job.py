"""What a benchmark asks of a program: one job, handed to a process of the program's own environment as JSON.

Needs the standard library alone, because it is imported in every environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

# Columns of every panel file beside its known and observed inputs.
ENTITY, STEP, TIME, TARGET = "entity", "step", "time", "target"


@dataclass(frozen=True)
class Panel:
    """A Parquet file that every program reads: entities of equal length, all reals standardised by their training rows.

    Rows are sorted by entity, then step; a step before `cut` is training, the others are validation.
    """

    path: str
    known: list[str]
    observed: list[str]  # without the target, whose own past every program sees
    entities: int
    steps: int  # rows of each entity
    cut: int


@dataclass(frozen=True)
class Job:
    """`task` is build, measure or race. Windows are counted in rows; steps are optimizer steps."""

    task: str
    panel: Panel
    hidden: int
    started: float  # time.time() of the parent, just before it started the process
    heads: int = 4
    layers: int = 1
    dropout: float = 0.1
    lookback: int = 60
    horizon: int = 10
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    continuous: int | None = None  # the peers' hidden_continuous_size; None is `hidden`, as in the paper
    batch: int = 64
    evaluation_batch: int = 256
    learning_rate: float = 1e-3
    seed: int = 0
    threads: int = 2
    # measure
    batches: int = 20  # of a block, over which one figure is taken
    blocks: int = 3
    # race
    steps: int = 1000  # at most
    evaluate_every: int = 25
    patience: int = 12  # evaluations without a lower loss, after which it stops
    stride: int = 1  # of every so many validation windows one is evaluated, counted from an entity's last one
    overrides: list[str] = field(default_factory=list)  # for tft-exp alone

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        fields = json.loads(text)
        fields["panel"] = Panel(**fields["panel"])
        fields["quantiles"] = tuple(fields["quantiles"])
        return Job(**fields)

    @property
    def window(self) -> int:
        return self.lookback + self.horizon

    @property
    def training_windows(self) -> int:
        return self.panel.entities * (self.panel.cut - self.window + 1)

    def evaluated(self, first_target: int) -> bool:
        """Is the validation window whose first target stands at this step one of those that are evaluated?"""
        return first_target >= self.panel.cut and (self.panel.steps - self.horizon - first_target) % self.stride == 0

    @property
    def evaluation_windows(self) -> int:
        starts = range(self.panel.cut, self.panel.steps - self.horizon + 1)
        return self.panel.entities * sum(self.evaluated(start) for start in starts)
