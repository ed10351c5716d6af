"""The schema of the sweep group: what a sweep does about jobs that are done, and about jobs that fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# A keyword cannot be a member's name in a class body.
OnFailure = Enum("OnFailure", {"continue": "continue", "stop": "stop"})


@dataclass
class SweepConfig:
    """Of `tft-exp train -m` and prepared sweeps; a single run reads none of it."""

    on_failure: OnFailure = OnFailure["continue"]
    resume: bool = True
