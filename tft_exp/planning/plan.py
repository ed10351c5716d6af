"""What a run would take of a card: peaks by phase, what is left, and where it would run out of memory. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tft_exp.memory.allocator import Shortage

FIRST, LATER = "first step", "later steps"
# In the order in which a run goes through them; training is two of them.
PHASES = ("setup", FIRST, LATER, "before_validation", "validation", "after_validation")


@dataclass(frozen=True)
class Assumed:
    """What is taken where there is no data to look at."""

    rows: int = 100_000
    categories: int = 100  # of each categorical column, the entities among them


@dataclass(frozen=True)
class CardSpeed:
    """What a card does in a second. The defaults are a GTX 1650's data sheet (4 GB, 128 GB/s, 2.98 TFLOP/s in float32), a PCIe
    3.0 x16 link as it is reached, and two channels of host memory; only their ratios count."""

    memory_gb_per_second: float = 128.0
    tflops: float = 2.98
    link_gb_per_second: float = 12.0
    host_gb_per_second: float = 20.0


class Verdict(Enum):
    """`tight` fits as rehearsed, and not on a card a little smaller: another order of the same allocations may fail."""

    fits = "fits"
    tight = "tight"
    out_of_memory = "out of memory"
    unlimited = "no card"


@dataclass(frozen=True)
class PhasePeak:
    """A phase's highest bytes in MiB: the allocator's blocks, its segments, and by kind what lives in the blocks (tensors, and
    what kernels keep). A block may be larger than what lives in it by up to a MiB, which depends on the card's size."""

    phase: str
    allocated_mib: float
    reserved_mib: float
    makeup_mib: dict[str, float]

    @property
    def live_mib(self) -> float:
        return sum(self.makeup_mib.values())


@dataclass(frozen=True)
class Plan:
    """`capacity_mib` is what tensors may take at most, None where no card's size is known. Where memory runs out,
    `out_of_memory_in` names the phase, and the peaks are those of a larger card."""

    verdict: Verdict
    out_of_memory_in: str | None
    shortage: Shortage | None
    peaks: tuple[PhasePeak, ...]
    capacity_mib: float | None
    context_mib: float
    host_peak_mib: float
    parameters: int
    train_windows: int
    window_seconds: float  # of a training window with its share of validation and policy, by data sheets: only ratios mean anything
    assumed: tuple[str, ...] = ()  # what of the data was not read

    @property
    def highest(self) -> PhasePeak:
        """The phase in which most was live."""
        return max(self.peaks, key=lambda peak: peak.live_mib)

    @property
    def allocated_mib(self) -> float:
        return max(peak.allocated_mib for peak in self.peaks)

    @property
    def reserved_mib(self) -> float:
        return max(peak.reserved_mib for peak in self.peaks)

    @property
    def left_mib(self) -> float | None:
        """What of the card holds no block at the highest moment; negative where the card is too small for any layout."""
        return None if self.capacity_mib is None else self.capacity_mib - self.allocated_mib

    @property
    def outcome(self) -> str:
        return f"{self.verdict.value} in {self.out_of_memory_in}" if self.out_of_memory_in else self.verdict.value

    def of_run_phase(self, phase: str) -> PhasePeak | None:
        """The peak of a phase as a run names it, of training's two parts the higher; None where a plan has no such phase."""
        names = (FIRST, LATER) if phase == "train" else (phase,)
        return max((peak for peak in self.peaks if peak.phase in names), key=lambda peak: peak.live_mib, default=None)


@dataclass(frozen=True)
class Planned:
    """One combination of a sweep: what was chosen, by group or key, and its plan, or why there is none."""

    choices: dict[str, str]
    plan: Plan | None
    refused: str | None = None
