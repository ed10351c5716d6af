"""The check that every range of the schema is made of."""

from __future__ import annotations

from enum import Enum

from tft_exp.errors import ConfigError


def require(holds: bool, key: str, value: object, allowed: str, mend: str = "") -> None:
    """Raises ConfigError naming the key, its value and what is allowed, where `holds` is false."""
    if not holds:
        shown = value.value if isinstance(value, Enum) else value
        raise ConfigError(f"{key}={shown!r} is not allowed: {allowed}", where=key, mend=mend)
