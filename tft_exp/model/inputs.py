"""What a Temporal Fusion Transformer is fed: how many variables of each role, and the tensors that hold them."""

from __future__ import annotations

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
    """One batch of model inputs. An absent role is a tensor whose last dimension is 0.

    Reals are floating point, already scaled. Categoricals are int64 codes, each in 0 .. cardinality - 1.
    """

    static_reals: Tensor  # [batch, static_reals]
    static_categoricals: Tensor  # [batch, number of static categoricals]
    known_reals: Tensor  # [batch, lookback + horizon, known_reals]
    known_categoricals: Tensor  # [batch, lookback + horizon, number of known categoricals]
    observed_reals: Tensor  # [batch, lookback, observed_reals]
    observed_categoricals: Tensor  # [batch, lookback, number of observed categoricals]
