"""A rehearsal laid out on a card."""

from __future__ import annotations

from tft_exp.config import Config, DeviceKind
from tft_exp.hardware import planned_device
from tft_exp.memory.devices import MIB
from tft_exp.memory.ledger import Kind
from tft_exp.memory.trace import Peak, Replay, replay
from tft_exp.planning.plan import FIRST, LATER, PHASES, CardSpeed, PhasePeak, Plan, Verdict
from tft_exp.planning.rehearsal import BETWEEN, Rehearsal, rehearse
from tft_exp.planning.shape import DataShape

NO_LIMIT = 1 << 62
# Where the allocator lives by clearing its cache, more steps than were laid out may find other gaps, and a larger card may fail
# where a smaller one does not. So a card's size counts as enough only if these shares of it are, too.
SMALLER = (0.94, 0.955, 0.97, 0.985)


def make_plan(config: Config, shape: DataShape, speed: CardSpeed) -> Plan:
    """Rehearse a run and lay it out on the configured card."""
    return lay_out(rehearse(config, shape), config, shape, speed)


def lay_out(rehearsal: Rehearsal, config: Config, shape: DataShape, speed: CardSpeed) -> Plan:
    """A rehearsal on the configured card; one rehearsal serves cards of any size."""
    device = planned_device(config.device)
    capacity = None if device.capacity_mib is None else (device.capacity_mib - device.context_mib) * MIB
    verdict, replayed, failed = judge(rehearsal, capacity, expandable=device.expandable_segments)
    return Plan(
        verdict=verdict,
        out_of_memory_in=None if failed is None else _as_run(rehearsal.intervals[failed.peaks[-1].interval]),
        shortage=None if failed is None else failed.shortage,
        peaks=_by_phase(replayed, rehearsal),
        capacity_mib=None if capacity is None else capacity / MIB,
        context_mib=float(device.context_mib) if device.kind in (DeviceKind.cuda, DeviceKind.virtual) else 0.0,
        host_peak_mib=rehearsal.host_peak / MIB,
        parameters=rehearsal.parameters,
        train_windows=shape.windows("train"),
        window_seconds=_window_seconds(rehearsal, config, shape, speed),
        assumed=shape.assumed,
    )


def judge(rehearsal: Rehearsal, capacity: int | None, *, expandable: bool = False) -> tuple[Verdict, Replay, Replay | None]:
    """Whether `capacity` bytes are enough, the replay whose peaks to show, and the one that ran out of memory."""

    def on(nbytes: int) -> Replay:
        return replay(rehearsal.trace, nbytes, expandable=expandable)

    free = on(NO_LIMIT)
    if capacity is None:
        return Verdict.unlimited, free, None
    if max(peak.reserved for peak in free.peaks) <= capacity:
        return Verdict.fits, free, None
    whole = on(capacity)
    if whole.shortage is not None:
        return Verdict.out_of_memory, free, whole
    tight = any(on(int(share * capacity)).shortage is not None for share in SMALLER)
    return Verdict.tight if tight else Verdict.fits, whole, None


def _as_run(interval: str) -> str:
    """An interval's phase by the name that a run gives it."""
    return "train" if interval in (FIRST, LATER) else interval


def _by_phase(replayed: Replay, rehearsal: Rehearsal) -> tuple[PhasePeak, ...]:
    """The highest of each phase over its intervals; what lies between phases belongs to the one before."""
    found: dict[str, list[tuple[Peak, dict[Kind, int]]]] = {phase: [] for phase in PHASES}
    phase = PHASES[0]
    for peak in replayed.peaks:
        name = rehearsal.intervals[peak.interval]
        phase = phase if name == BETWEEN else name
        if peak.interval < len(rehearsal.makeup):  # the last is the end, and has none
            found[phase].append((peak, rehearsal.makeup[peak.interval]))
    peaks = []
    for phase, members in found.items():
        if members:
            allocated, reserved = (max(getattr(peak, figure) for peak, _ in members) / MIB for figure in ("allocated", "reserved"))
            most = max((kinds for _, kinds in members), key=lambda kinds: sum(kinds.values()))
            peaks.append(PhasePeak(phase, allocated, reserved, {kind.value: nbytes / MIB for kind, nbytes in most.items()}))
    return tuple(peaks)


def _window_seconds(rehearsal: Rehearsal, config: Config, shape: DataShape, speed: CardSpeed) -> float:
    """Predicted seconds of one training window with its share of an epoch's validation and policy."""
    seconds = {interval: work.seconds(speed) for interval, work in rehearsal.work.items()}
    batch, trainer = config.batch, config.trainer
    batches = -(-shape.windows("train") // batch.train)
    if trainer.limit_train_batches is not None:
        batches = min(batches, trainer.limit_train_batches)
    training = (seconds.get(FIRST, 0.0) + seconds.get(LATER, 0.0)) / rehearsal.batches["train"] * batches
    validation = seconds.get("validation", 0.0) / rehearsal.batches["validation"] * rehearsal.validation_batches
    policy = (seconds.get("before_validation", 0.0) + seconds.get("after_validation", 0.0)) / rehearsal.epochs
    return (training + validation + policy) / min(shape.windows("train"), batches * batch.train)
