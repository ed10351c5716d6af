"""Model weights on disk, with what a later forecast needs to know about its inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

WEIGHTS = "model.safetensors"
PREPROCESSING = "preprocessing.json"


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights as safetensors, whole or not at all: a run that is killed here keeps its last good file."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / (WEIGHTS + ".unfinished")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, unfinished)
    unfinished.replace(folder / WEIGHTS)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load the weights that `save_weights` wrote; raises RuntimeError where their names or shapes differ."""
    model.load_state_dict(load_file(folder / WEIGHTS))


def save_preprocessing(preprocessing: Mapping[str, Any], folder: Path) -> None:
    """Roles, vocabularies, locations and scales of the inputs, as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PREPROCESSING).write_text(json.dumps(preprocessing, indent=2))
