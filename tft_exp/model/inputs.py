"""What a Temporal Fusion Transformer is fed: how many variables of each role, and the tensors that hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class InputSizes:
    """Number of real variables and the cardinality of each categorical variable, by role.

    Static variables hold one value an entity, known ones are known over lookback and horizon, observed ones over the
    lookback alone (Lim et al. 2021, section 3).
    """

    static_reals: int = 0
    static_cardinalities: tuple[int, ...] = ()
    known_reals: int = 0
    known_cardinalities: tuple[int, ...] = ()
    observed_reals: int = 0
    observed_cardinalities: tuple[int, ...] = ()

    @property
    def static(self) -> int:
        return self.static_reals + len(self.static_cardinalities)

    @property
    def known(self) -> int:
        return self.known_reals + len(self.known_cardinalities)

    @property
    def observed(self) -> int:
        return self.observed_reals + len(self.observed_cardinalities)


class Inputs(NamedTuple):
    """One batch of model inputs: runs of windows over rows that they share. An absent role is a tensor whose last dimension is 0.

    A run is one entity's rows, lookback + horizon + extra of them; its windows begin at its first row and every `stride` rows
    later, extra / stride + 1 in all. With no extra rows a run is one window. Reals are floating point, already scaled.
    Categoricals are int64 codes, each in 0 .. cardinality - 1.
    """

    static_reals: Tensor  # [runs, static_reals]
    static_categoricals: Tensor  # [runs, number of static categoricals]
    known_reals: Tensor  # [runs, lookback + horizon + extra, known_reals]
    known_categoricals: Tensor  # [runs, lookback + horizon + extra, number of known categoricals]
    observed_reals: Tensor  # [runs, lookback + extra, observed_reals]
    observed_categoricals: Tensor  # [runs, lookback + extra, number of observed categoricals]
    stride: int = 1

    def moved(self, move: Callable[[Tensor], Tensor]) -> Inputs:
        """The same inputs, every tensor brought elsewhere by `move`."""
        return Inputs._make([*map(move, self[:-1]), self.stride])
