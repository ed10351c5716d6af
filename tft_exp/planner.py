"""Behind `tft-exp plan` and `tft-exp advise`: combinations from the command line, their plans to the terminal and into files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tft_exp.compose import expand_sweep
from tft_exp.errors import ConfigError
from tft_exp.planning.many import plan_all
from tft_exp.planning.plan import Assumed, CardSpeed, Planned
from tft_exp.report.plans import draw_plans, print_plans, write_csv, write_json

WIDTH = 200  # of a table into a pipe or a file
# They change nothing about memory, and a sweep's combinations that differ in them alone are one plan.
IGNORED = ("seed",)


def plan(
    overrides: Sequence[str],
    *,
    assumed: Assumed,
    calibration: Path | None = None,
    jobs: int | None = None,
    json_file: Path | None = None,
    csv_file: Path | None = None,
    png_file: Path | None = None,
) -> int:
    """Plan every combination of the overrides and print the table. Returns the exit code, 2 where not one could be planned."""
    combinations = expand_sweep(overrides, ignored=IGNORED)
    planned = plan_with_progress(combinations, assumed, calibration, jobs)
    print_plans(planned, console())
    for path, write in ((json_file, write_json), (csv_file, write_csv), (png_file, draw_plans)):
        if path is not None:
            _into(path)
            write(planned, path)
            print(f"written: {path}")
    return 0 if any(one.plan is not None for one in planned) else 2


def plan_with_progress(
    combinations: Sequence[dict[str, str]], assumed: Assumed, calibration: Path | None, jobs: int | None
) -> list[Planned]:
    """All plans, with a bar on the terminal."""
    extra, speed = read_calibration(calibration) if calibration is not None else ((), CardSpeed())
    columns = (TextColumn("planning"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=len(combinations))
        return plan_all(combinations, extra=extra, assumed=assumed, speed=speed, jobs=jobs, on_done=lambda count: bar.advance(task, count))


def read_calibration(path: Path) -> tuple[tuple[str, ...], CardSpeed]:
    """What scripts/calibrate_cuda.py measured on a card: overrides of the device group, and speeds. Raises ConfigError."""
    try:
        content = json.loads(path.read_text())
        known = {field.name for field in fields(CardSpeed)}
        device = {key: float(value) for key, value in content["device"].items()}
        speed = CardSpeed(**{key: float(value) for key, value in content["speed"].items() if key in known})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path} is no calibration: {error}", where=str(path), mend="write one on a CUDA machine with scripts/calibrate_cuda.py"
        ) from error
    whole = {"context_mib", "cublas_workspace_kib"}
    return tuple(f"device.{key}={round(value) if key in whole else value}" for key, value in device.items()), speed


def console() -> Console:
    """The terminal; into a pipe or a file, wide enough for every column."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def _into(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", where=str(path), mend="make it, or name another file")
