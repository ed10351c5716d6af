"""A rehearsed run laid out on a card: peaks by phase, what is left, and where it would run out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tft_exp.config import Config, DeviceKind
from tft_exp.memory.allocator import Shortage
from tft_exp.memory.devices import MIB
from tft_exp.memory.ledger import Kind
from tft_exp.memory.trace import Peak, Replay, replay
from tft_exp.planning.cost import CardSpeed
from tft_exp.planning.rehearsal import BETWEEN, FIRST, LATER, Rehearsal, rehearse
from tft_exp.planning.shape import DataShape

# In the order in which a run goes through them.
PHASES = ("setup", FIRST, LATER, "before_validation", "validation", "after_validation")
NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class PhasePeak:
    """A phase's highest bytes in MiB, tensors (and what kernels keep) and segments, and the make-up of the first by kind."""

    phase: str
    allocated_mib: float
    reserved_mib: float
    makeup_mib: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """What a run will take of a card. `capacity_mib` is what tensors may take at most, None where the device has no limit that
    a plan knows. Where it runs out of memory, `out_of_memory_in` names the phase, and the peaks are those of a larger card."""

    peaks: tuple[PhasePeak, ...]
    capacity_mib: float | None
    context_mib: float
    out_of_memory_in: str | None
    shortage: Shortage | None
    host_peak_mib: float
    parameters: int
    window_seconds: float  # of a training window, with its share of validation and policy; only ratios mean anything

    @property
    def peak(self) -> PhasePeak:
        """The phase that takes most."""
        return max(self.peaks, key=lambda peak: (peak.reserved_mib, peak.allocated_mib))

    @property
    def peak_allocated_mib(self) -> float:
        return max(peak.allocated_mib for peak in self.peaks)

    @property
    def left_mib(self) -> float | None:
        """What of the card nobody would have asked for; negative where it is too small."""
        return None if self.capacity_mib is None else self.capacity_mib - self.peak.reserved_mib

    @property
    def fits(self) -> bool:
        return self.out_of_memory_in is None

    def allocated_mib(self, phase: str) -> float:
        """The peak of a phase as a run names it: training is its first and later steps."""
        names = (FIRST, LATER) if phase == "train" else (phase,)
        return max((peak.allocated_mib for peak in self.peaks if peak.phase in names), default=0.0)


def make_plan(config: Config, shape: DataShape, speed: CardSpeed) -> Plan:
    """Rehearse a run and lay it out on the configured card."""
    return lay_out(rehearse(config, shape), config, shape, speed)


def capacity_of(config: Config) -> float | None:
    """MiB that tensors may take on the configured card; None where the configuration names no card's size."""
    device = config.device
    return None if device.capacity_mib is None else float(device.capacity_mib - device.context_mib)


def lay_out(rehearsal: Rehearsal, config: Config, shape: DataShape, speed: CardSpeed) -> Plan:
    """A rehearsal on the configured card; one rehearsal serves cards of any size."""
    capacity_mib, expandable = capacity_of(config), config.device.expandable_segments
    free = replay(rehearsal.trace, rehearsal.intervals, NO_LIMIT, expandable=expandable)
    capped = free
    if capacity_mib is not None and max(peak.reserved for peak in free.peaks) > capacity_mib * MIB:
        capped = replay(rehearsal.trace, rehearsal.intervals, int(capacity_mib * MIB), expandable=expandable)
    fits = capped.shortage is None
    return Plan(
        peaks=_by_phase(capped if fits else free, rehearsal.makeup),
        capacity_mib=capacity_mib,
        context_mib=float(config.device.context_mib) if config.device.kind in (DeviceKind.cuda, DeviceKind.virtual) else 0.0,
        out_of_memory_in=None if fits else _as_run(capped.peaks[-1].interval),
        shortage=capped.shortage,
        host_peak_mib=rehearsal.host_peak / MIB,
        parameters=rehearsal.parameters,
        window_seconds=_window_seconds(rehearsal, config, shape, speed),
    )


def least_capacity_mib(rehearsal: Rehearsal, *, expandable: bool = False) -> int:
    """The smallest whole MiB on which a replay does not run out of memory."""

    def fits(mib: int) -> bool:
        return replay(rehearsal.trace, rehearsal.intervals, mib * MIB, expandable=expandable).shortage is None

    free = replay(rehearsal.trace, rehearsal.intervals, NO_LIMIT, expandable=expandable)
    low, high = max(peak.allocated for peak in free.peaks) // MIB, -(-max(peak.reserved for peak in free.peaks) // MIB)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def _as_run(interval: str) -> str:
    """An interval's phase by the name that a run gives it."""
    return "train" if interval in (FIRST, LATER) else interval


def _by_phase(replayed: Replay, makeup: Sequence[dict[Kind, int]]) -> tuple[PhasePeak, ...]:
    """The highest of each phase over its intervals; what lies between phases belongs to the one before."""
    found: dict[str, list[tuple[Peak, dict[Kind, int]]]] = {phase: [] for phase in PHASES}
    phase = PHASES[0]
    for peak, kinds in zip(replayed.peaks, makeup, strict=False):  # the last interval is the end, and has no make-up
        phase = phase if peak.interval == BETWEEN else peak.interval
        found[phase].append((peak, kinds))
    peaks = []
    for phase, members in found.items():
        if members:
            highest, kinds = max(members, key=lambda member: member[0].allocated)
            peaks.append(
                PhasePeak(
                    phase,
                    highest.allocated / MIB,
                    max(peak.reserved for peak, _ in members) / MIB,
                    {kind.value: nbytes / MIB for kind, nbytes in kinds.items()},
                )
            )
    return tuple(peaks)


def _window_seconds(rehearsal: Rehearsal, config: Config, shape: DataShape, speed: CardSpeed) -> float:
    """Predicted seconds of one training window with its share of an epoch's validation and policy."""
    seconds = {interval: work.seconds(speed) for interval, work in rehearsal.work.items()}
    batch, trainer = config.batch, config.trainer
    batches = -(-shape.windows["train"] // batch.train)
    validated = -(-shape.windows["validation"] // batch.validation)
    if trainer.limit_train_batches is not None:
        batches = min(batches, trainer.limit_train_batches)
    if trainer.limit_validation_batches is not None:
        validated = min(validated, trainer.limit_validation_batches)
    epochs = min(2, trainer.max_epochs)
    training = (seconds.get(FIRST, 0.0) + seconds.get(LATER, 0.0)) / rehearsal.batches["train"] * batches
    validation = seconds.get("validation", 0.0) / rehearsal.batches["validation"] * validated
    policy = (seconds.get("before_validation", 0.0) + seconds.get("after_validation", 0.0)) / epochs
    return (training + validation + policy) / min(shape.windows["train"], batches * batch.train)
