"""The schema of the data and features groups: which table, which columns, what to do about what is wrong with it."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field, replace
from enum import Enum

from omegaconf import MISSING

from tft_exp.config.checks import require

MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6, "w": 7 * 86400 * 10**6}
LENGTH = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(MICROSECONDS)})")


class OnBad(Enum):
    error = "error"
    drop = "drop"


class OnDuplicates(Enum):
    error = "error"
    keep_first = "keep_first"
    keep_last = "keep_last"


class Scaling(Enum):
    entity = "entity"
    all = "all"


class FeatureSet(Enum):
    none = "none"
    ohlcv = "ohlcv"
    ohlcv_225 = "ohlcv_225"


@dataclass
class BarColumns:
    """Names of the price and volume columns; null where the data has none (the OHLC order is then not checked)."""

    open: str | None = None
    high: str | None = None
    low: str | None = None
    close: str | None = None
    volume: str | None = None


@dataclass
class DataConfig:
    """Where the rows come from, what each column is, what is done about bad rows, and how time is split."""

    path: str = MISSING
    time: str = "timestamp"
    entities: list[str] = field(default_factory=list)
    target: str = MISSING
    static_real: list[str] = field(default_factory=list)
    static_categorical: list[str] = field(default_factory=list)
    known_real: list[str] = field(default_factory=list)
    known_categorical: list[str] = field(default_factory=list)
    observed_real: list[str] = field(default_factory=list)
    observed_categorical: list[str] = field(default_factory=list)
    bars: BarColumns = field(default_factory=BarColumns)
    max_gap: str | None = None
    earliest: str = "1950-01-01"
    latest: str = "2100-01-01"
    on_bad_rows: OnBad = OnBad.error
    on_duplicates: OnDuplicates = OnDuplicates.error
    on_unseen_entity: OnBad = OnBad.error
    on_short_entity: OnBad = OnBad.error
    on_constant_target: OnBad = OnBad.error
    validation_fraction: float = 0.2
    test_fraction: float = 0.0
    scaling: Scaling = Scaling.entity
    season_length: int | None = None
    cache: str | None = "~/.cache/tft-exp"
    cache_from_mib: int = 16

    def __post_init__(self) -> None:
        require(0.0 < self.validation_fraction < 1.0, "data.validation_fraction", self.validation_fraction, "more than 0, less than 1")
        require(0.0 <= self.test_fraction < 1.0, "data.test_fraction", self.test_fraction, "from 0 to less than 1")
        require(
            self.validation_fraction + self.test_fraction < 1.0,
            "data.test_fraction",
            self.test_fraction,
            f"with data.validation_fraction={self.validation_fraction} nothing is left to train on",
        )
        require(self.season_length is None or self.season_length >= 1, "data.season_length", self.season_length, "null, or 1 bar and more")
        require(
            self.max_gap is None or (self.max_gap_us or 0) >= 1,
            "data.max_gap",
            self.max_gap,
            f"null, or a positive length of time with a unit ({', '.join(MICROSECONDS)}), such as 60s, 5min, 4d",
        )
        require(self.cache_from_mib >= 0, "data.cache_from_mib", self.cache_from_mib, "0 MiB and more")
        for key in ("earliest", "latest"):
            try:
                datetime.date.fromisoformat(getattr(self, key))
            except ValueError:
                require(False, f"data.{key}", getattr(self, key), "a date written as YYYY-MM-DD")
        require(self.earliest < self.latest, "data.earliest", self.earliest, f"it must lie before data.latest={self.latest}")
        self._check_roles()

    @property
    def max_gap_us(self) -> int | None:
        """The longest step within a window, microseconds; None where there is no limit, or where it cannot be read."""
        found = LENGTH.fullmatch(self.max_gap) if self.max_gap is not None else None
        return None if found is None else round(float(found[1]) * MICROSECONDS[found[2]])

    @property
    def placeless(self) -> DataConfig:
        """All that decides what is made of the rows, and nothing of where they lie or are kept."""
        return replace(self, path="", cache=None, cache_from_mib=0)

    def _check_roles(self) -> None:
        taken: dict[str, str] = {}
        roles = ["static_real", "static_categorical", "known_real", "known_categorical", "observed_real", "observed_categorical"]
        for role in roles:
            for column in getattr(self, role):
                first = taken.setdefault(column, role)
                require(first == role, f"data.{role}", column, f"the column already has the role data.{first}", "give each column one role")
                require(
                    column != self.time,
                    f"data.{role}",
                    column,
                    "it is the time column (data.time); calendar inputs come from the features group",
                )
        for role in ("known_real", "known_categorical", "static_real", "static_categorical"):
            require(
                self.target not in getattr(self, role),
                f"data.{role}",
                self.target,
                "it is the target, and its future may not be known",
                "leave it out: the target's past is always an observed input",
            )


@dataclass
class FeaturesConfig:
    """Inputs derived from bars."""

    kind: FeatureSet = FeatureSet.none
