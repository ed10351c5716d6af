"""The look that all pictures share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE_COLORS = {
    "setup": "#7f7f7f",
    "train": "#4269d0",
    "before_validation": "#ff8c00",
    "validation": "#3a9d5d",
    "after_validation": "#a463f2",
    "test": "#9c6b4e",
}


# What a peak is made of: paler than the phases, whose lines are drawn over them.
KIND_COLORS = {
    "parameters": "#b9c6e4",
    "gradients": "#f3c9a5",
    "optimizer state": "#d9b3d9",
    "kernel workspace": "#b7d9c4",
    "other": "#dcdcdc",
}


def new_figure(*, width: float, height: float, columns: int = 1) -> tuple[Figure, Axes]:
    """A figure of its own, outside pyplot's global list, so that a sweep's figures do not pile up in memory."""
    figure, axes = new_figures(width=width, height=height, columns=1)
    return figure, axes[0]


def new_figures(*, width: float, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    # It announces on every new machine that it has built its list of fonts.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
        one.title.set_fontsize(10)
    return figure, axes
